"""The Anthropic SDK: a tool's turn after a count of tokens, or a stream closed half-way."""

from __future__ import annotations

import sys
from typing import Any

from recipe import MODEL, client  # type: ignore[import-not-found]

ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def turn() -> None:
    messages: list[Any] = [{"role": "user", "content": "What is 40+2?"}]
    counted = client.messages.count_tokens(model=MODEL, messages=messages, tools=[ADD])
    while True:
        with client.messages.stream(
            model=MODEL, max_tokens=1000, messages=messages, tools=[ADD]
        ) as stream:
            message = stream.get_final_message()
        if len(messages) == 1 and message.usage.input_tokens != counted.input_tokens:
            raise SystemExit(f"counted {counted}, then used {message.usage}")
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            print("".join(block.text for block in message.content), flush=True)
            return
        messages.append({"role": "assistant", "content": message.content})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": f"luce-{call.input['a'] + call.input['b']}",
            }
            for call in calls
        ]
        messages.append({"role": "user", "content": results})


def cancel() -> None:
    messages = [{"role": "user", "content": "Tell me a long story."}]
    with client.messages.stream(model=MODEL, max_tokens=10_000, messages=messages) as stream:
        next(iter(stream.text_stream))
        print("streaming", flush=True)
        sys.stdin.readline()
    print("closed", flush=True)
    sys.stdin.readline()


{"turn": turn, "cancel": cancel}[sys.argv[1]]()
