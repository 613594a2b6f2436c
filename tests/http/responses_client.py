"""A client of OpenAI's Responses that is as strict about streams as the official ones."""

from __future__ import annotations

from typing import Any

import httpx2
from http_harness import Harness
from messages_client import named_events
from scripted_text import tagged_text, writing

RESPONSES = "/v1/responses"
TEXT = tagged_text()
F = {
    "type": "function",
    "name": "f",
    "description": "d",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
    },
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "edit",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"},
}
CODEX: dict[str, Any] = {
    "instructions": "You are an agent.",
    "store": False,
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "thread-uuid",
    "text": {"verbosity": "medium"},
    "client_metadata": {"a": "b"},
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "rules"}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "opaque"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "ok"}],
        },
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a":1}'},
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "a.py"}],
        },
        {
            "type": "custom_tool_call",
            "call_id": "call_2",
            "name": "apply_patch",
            "input": "*** Begin",
        },
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "patched"},
    ],
    "tools": [F, PATCH, {"type": "web_search"}, {"type": "namespace", "name": "mcp", "tools": []}],
}


async def ask(server: Harness, **fields: Any) -> httpx2.Response:
    return await server.client.post(RESPONSES, json={"model": "big", "input": "hi", **fields})


def serving(answer: str, **fields: Any) -> Harness:
    return Harness(writing(TEXT, answer, **fields), texts=(TEXT,))


async def both(server: Harness, **fields: Any) -> dict[str, Any]:
    """The whole answer; fails if the streamed one is another."""
    whole = await ask(server, **fields)
    streamed = await ask(server, **fields, stream=True)
    assert (whole.status_code, streamed.status_code) == (200, 200), whole.text
    assert streamed.headers["content-type"] == "text/event-stream"
    response: dict[str, Any] = whole.json()
    joined = response_of(named_events(streamed.text))
    assert _without_ids(joined) == _without_ids(response)
    return response


def response_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response of a stream; fails where its events do not lead to it."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    created, in_progress, *inner, last = events
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"]["status"] == "in_progress"
    assert created["response"]["output"] == []
    reader = _Reader()
    for event in inner:
        if event["type"] == "response.in_progress":
            assert event["response"]["id"] == created["response"]["id"]
        else:
            reader.take(event)
    assert reader.item is None
    response: dict[str, Any] = last["response"]
    assert response["id"] == created["response"]["id"]
    assert last["type"] == f"response.{response['status']}"
    assert response["output"] == reader.done
    return response


class _Reader:
    """Reads items one after the other."""

    def __init__(self) -> None:
        self.item: dict[str, Any] | None = None
        self.done: list[dict[str, Any]] = []
        self._text = ""
        self._whole: str | None = None

    def take(self, event: dict[str, Any]) -> None:
        assert event["output_index"] == len(self.done)
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert self.item is None
            self.item = event["item"]
            assert self.item["status"] == "in_progress"
            assert _text_of(self.item) == ""
            self._text, self._whole = "", None
            return
        assert self.item is not None
        if kind == "output_item.done":
            self._end(event["item"])
            return
        assert event["item_id"] == self.item["id"]
        if kind.endswith(".delta"):
            assert self._whole is None
            self._text += event["delta"]
        elif kind.endswith("part.added"):
            assert event["part"]["text"] == ""
        elif kind.endswith("part.done"):
            assert event["part"]["text"] == self._text
        else:
            assert kind.endswith(".done")
            found = (event.get(name) for name in ("text", "arguments", "input"))
            self._whole = next(text for text in found if text is not None)

    def _end(self, item: dict[str, Any]) -> None:
        assert self.item is not None
        assert (item["id"], item["type"]) == (self.item["id"], self.item["type"])
        assert item.get("call_id") == self.item.get("call_id")
        assert _text_of(item) == self._whole == self._text
        self.done.append(item)
        self.item = None


def _text_of(item: dict[str, Any]) -> str:
    if item["type"] in ("function_call", "custom_tool_call"):
        text: str = item["arguments" if item["type"] == "function_call" else "input"]
        return text
    parts = [*item.get("summary", ()), *(item.get("content") or ())]
    return "".join(part["text"] for part in parts)


def _without_ids(response: dict[str, Any]) -> dict[str, Any]:
    assert response["id"].startswith("resp_")
    ids = [item["id"] for item in response["output"]]
    calls = [item["call_id"] for item in response["output"] if "call_id" in item]
    assert len(set(ids + calls)) == len(ids + calls)
    output = [{**item, "id": None, "call_id": None} for item in response["output"]]
    return {**response, "id": None, "created_at": None, "output": output}
