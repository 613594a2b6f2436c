"""The OpenAI SDK on Responses: a tool's turn, or a stream closed half-way."""

from __future__ import annotations

import json
import sys
from typing import Any

from recipe import MODEL, client  # type: ignore[import-not-found]

ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def turn() -> None:
    items: list[Any] = [{"role": "user", "content": "What is 40+2?"}]
    while True:
        with client.responses.stream(model=MODEL, input=items, tools=[ADD]) as stream:
            response = stream.get_final_response()
        items += [item.to_dict() for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            print(response.output_text, flush=True)
            return
        for call in calls:
            numbers = json.loads(call.arguments)
            result = f"luce-{numbers['a'] + numbers['b']}"
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": result}
            )


def cancel() -> None:
    stream = client.responses.create(model=MODEL, input="Tell me a long story.", stream=True)
    for event in stream:
        if event.type == "response.output_text.delta":
            break
    print("streaming", flush=True)
    sys.stdin.readline()
    stream.close()
    print("closed", flush=True)
    sys.stdin.readline()


{"turn": turn, "cancel": cancel}[sys.argv[1]]()
