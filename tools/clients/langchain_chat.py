"""LangChain's ChatOpenAI: a tool's turn, or a stream closed half-way."""

from __future__ import annotations

import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage  # type: ignore[import-not-found]
from recipe import model  # type: ignore[import-not-found]


def add(a: int, b: int) -> str:
    """Add two numbers."""
    return f"luce-{a + b}"


def turn() -> None:
    with_tools = model.bind_tools([add])
    messages: list[Any] = [HumanMessage("What is 40+2?")]
    while True:
        chunks = list(with_tools.stream(messages))
        message = sum(chunks[1:], start=chunks[0])
        if not message.tool_calls:
            print(message.text, flush=True)
            return
        messages.append(message)
        messages += [
            ToolMessage(add(**call["args"]), tool_call_id=call["id"]) for call in message.tool_calls
        ]


def cancel() -> None:
    stream = model.stream("Tell me a long story.")
    for chunk in stream:
        if chunk.text:
            break
    print("streaming", flush=True)
    sys.stdin.readline()
    stream.close()
    print("closed", flush=True)
    sys.stdin.readline()


{"turn": turn, "cancel": cancel}[sys.argv[1]]()
