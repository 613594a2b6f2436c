"""A client of Anthropic's Messages that is as strict about streams as the official ones."""

from __future__ import annotations

import json
from typing import Any

import httpx2
from http_harness import Harness
from scripted_text import tagged_text, writing

MESSAGES = "/v1/messages"
BOTH = [MESSAGES, f"{MESSAGES}/count_tokens"]
TEXT = tagged_text()
USER = {"role": "user", "content": "hi"}
THINKING = {"type": "enabled", "budget_tokens": 1024}
F = {
    "name": "f",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
    },
}


def call(arguments: str, name: str = "f") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CALL = call('{"a": 1}')
CALL_2 = call('{"a": 22}')


def body_of(**fields: Any) -> dict[str, Any]:
    return {"model": "big", "max_tokens": 500, "messages": [USER], **fields}


CLAUDE_CODE: dict[str, Any] = {
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0; cch=1a2b3;"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "list files"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "abc"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": False,
                    "content": [{"type": "text", "text": "a.py"}],
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
        {"role": "system", "content": "<total_tokens>5000 tokens left</total_tokens>"},
    ],
    "tools": [F],
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": []},
    "metadata": {"user_id": "u"},
}


async def ask(server: Harness, path: str = MESSAGES, **fields: Any) -> httpx2.Response:
    return await server.client.post(path, json=body_of(**fields))


def serving(answer: str, **fields: Any) -> Harness:
    return Harness(writing(TEXT, answer, **fields), texts=(TEXT,))


async def both(server: Harness, **fields: Any) -> dict[str, Any]:
    """The whole answer; fails if the streamed one is another."""
    whole = await ask(server, **fields)
    streamed = await ask(server, **fields, stream=True)
    assert (whole.status_code, streamed.status_code) == (200, 200), whole.text
    assert streamed.headers["content-type"] == "text/event-stream"
    message: dict[str, Any] = whole.json()
    joined = message_of(named_events(streamed.text))
    assert _without_ids(joined) == _without_ids(message)
    return message


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    assert message["id"].startswith("msg_")
    ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    assert len(set(ids)) == len(ids)
    assert all(call_id.startswith("toolu_") for call_id in ids)
    content = [{**block, "id": None} for block in message["content"]]
    return {**message, "id": None, "content": content}


def named_events(text: str) -> list[dict[str, Any]]:
    """Data of the events of a finished stream; each one's name is its type."""
    events: list[dict[str, Any]] = []
    for block in (part for part in text.split("\n\n") if part):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}", block
        events.append(event)
    return events


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together; fails where a strict client would."""
    first, ping, *inner, delta, stop = events
    assert (first["type"], ping) == ("message_start", {"type": "ping"})
    assert (delta["type"], stop) == ("message_delta", {"type": "message_stop"})
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"], message["role"]) == ([], None, "assistant")
    assert message["usage"]["output_tokens"] == 0
    is_open = False
    for event in inner:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(message["content"])
            message["content"].append({**_empty(event["content_block"]), "joined": ""})
            is_open = True
        elif event["type"] == "content_block_stop":
            assert is_open
            assert event["index"] == len(message["content"]) - 1
            is_open = False
        elif event["type"] != "ping":
            assert is_open
            assert event["type"] == "content_block_delta"
            assert event["index"] == len(message["content"]) - 1
            _grow(message["content"][-1], event["delta"])
    assert not is_open
    message["content"] = [_whole(block) for block in message["content"]]
    return {**message, **delta["delta"], "usage": {**message["usage"], **delta["usage"]}}


def _empty(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "text":
        assert block == {"type": "text", "text": ""}
    elif block["type"] == "thinking":
        assert block == {"type": "thinking", "thinking": "", "signature": ""}
    else:
        assert block["input"] == {}
        assert block.keys() == {"type", "id", "name", "input"}
    return block


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    if delta["type"] == "signature_delta":
        assert block["type"] == "thinking"
        block["signature"] = delta["signature"]
        return
    kind, name = {
        "text": ("text_delta", "text"),
        "thinking": ("thinking_delta", "thinking"),
        "tool_use": ("input_json_delta", "partial_json"),
    }[block["type"]]
    assert delta["type"] == kind
    assert delta[name]
    block["joined"] += delta[name]


def _whole(block: dict[str, Any]) -> dict[str, Any]:
    joined = block.pop("joined")
    name = block["type"]
    if name != "tool_use":
        return {**block, name: joined}
    try:
        return {**block, "input": json.loads(joined or "{}")}
    except ValueError:
        return {**block, "input": {"_raw": joined}}
