"""The OpenAI SDK on Chat Completions: a tool's turn, or a stream closed half-way."""

from __future__ import annotations

import json
import sys
from typing import Any

from recipe import MODEL, client  # type: ignore[import-not-found]

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def turn() -> None:
    messages: list[Any] = [{"role": "user", "content": "What is 40+2?"}]
    while True:
        with client.chat.completions.stream(
            model=MODEL, messages=messages, tools=[ADD], stream_options={"include_usage": True}
        ) as stream:
            message = stream.get_final_completion().choices[0].message
        if not message.tool_calls:
            print(message.content, flush=True)
            return
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            numbers = json.loads(call.function.arguments)
            result = f"luce-{numbers['a'] + numbers['b']}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def cancel() -> None:
    messages = [{"role": "user", "content": "Tell me a long story."}]
    stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    print("streaming", flush=True)
    sys.stdin.readline()
    stream.close()
    print("closed", flush=True)
    sys.stdin.readline()


{"turn": turn, "cancel": cancel}[sys.argv[1]]()
