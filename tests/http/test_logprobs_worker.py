"""Log probabilities from the worker's steps to the client's content, and nothing but content."""

from __future__ import annotations

from typing import Any

import pytest
from http_harness import Harness, events_of
from scripted_text import tagged_text, writing

pytestmark = pytest.mark.anyio

TEXT = tagged_text()
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
ANSWER = f"<think>\nLet me see.\n</think>\n\nIt costs €4, 🎉.\n{CALL}"
F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FIELDS: dict[str, Any] = {
    "reasoning_effort": "low",
    "tools": [F],
    "logprobs": True,
    "top_logprobs": 2,
}


def entries_of(events: list[Any]) -> list[Any]:
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    return [
        entry
        for choice in choices
        for entry in (choice.get("logprobs") or {"content": None})["content"] or ()
    ]


@pytest.mark.parametrize("tokens_per_step", [1, 3, 1000])
async def test_every_token_of_the_content_and_no_other(tokens_per_step: int) -> None:
    script = writing(TEXT, ANSWER, tokens_per_step=tokens_per_step)
    async with Harness(script, texts=(TEXT,)) as server:
        (choice,) = (await server.ask("x", **FIELDS)).json()["choices"]
        events = events_of((await server.ask("x", **FIELDS, stream=True)).text)
        assert server.models[0].submits()[0].sampling.logprobs == 2
    content = choice["message"]["content"]
    assert content == "It costs €4, 🎉."
    assert len(choice["message"]["tool_calls"]) == 1
    entries = choice["logprobs"]["content"]
    assert entries_of(events) == entries
    # The last token may have the line end that belongs to the call.
    data = bytes(byte for entry in entries for byte in entry["bytes"]).decode()
    assert data.rstrip() == content
    read = TEXT.tokenizer.token_bytes
    for entry in entries:
        first, second = entry["top_logprobs"]
        assert (first["bytes"], first["logprob"]) == (entry["bytes"], entry["logprob"])
        token_id = next(i for i in range(512) if list(read(i)) == entry["bytes"])
        assert second["bytes"] == list(read(token_id + 1))


@pytest.mark.parametrize("stop", ["€", "costs", "4, "])
async def test_a_stop_string_ends_both(stop: str) -> None:
    async with Harness(writing(TEXT, ANSWER), texts=(TEXT,)) as server:
        (choice,) = (await server.ask("x", **FIELDS, stop=stop)).json()["choices"]
        events = events_of((await server.ask("x", **FIELDS, stop=stop, stream=True)).text)
    content = choice["message"]["content"]
    entries = choice["logprobs"]["content"]
    data = bytes(byte for entry in entries for byte in entry["bytes"])
    assert content == "It costs €4, 🎉."[: "It costs €4, 🎉.".index(stop)]
    assert content.encode().startswith(data)
    assert entries_of(events) == entries
