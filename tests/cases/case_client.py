"""What the cases of the bug log share: the four routes, what clients collect, a real server."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from http_harness import CHAT, Harness, events_of
from scripted_text import tagged_text, writing
from server_process import ServerProcess

COMPLETIONS, MESSAGES, RESPONSES = "/v1/completions", "/v1/messages", "/v1/responses"
ROUTES = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)
TEXT = tagged_text()
"""Qwen 3's template over a byte vocabulary; its tags are control tokens."""

USER: list[Any] = [{"role": "user", "content": "Hi"}]
SCHEMA_AB = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


def serving(answer: str, text: Any = TEXT, **script: Any) -> Harness:
    """A server whose model `big` writes this answer to everything."""
    return Harness(writing(text, answer, **script), texts=(text,))


def real_server(model: Path, *options: str) -> ServerProcess:
    """A whole server over one real model named m."""
    command = ["-m", "luce", "serve", str(model), "--model-name", "m", "--port", "0", *options]
    return ServerProcess([sys.executable, *command])


def call(name: str, arguments: str) -> str:
    """A tool call as Qwen and Hermes write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def tool(name: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """A tool of the chat API."""
    parameters = schema or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def minimal(path: str, **fields: Any) -> dict[str, Any]:
    """The smallest body of a route."""
    body: dict[str, Any] = {"model": "m", "max_tokens": 4, "messages": USER}
    if path == COMPLETIONS:
        body = {"model": "m", "max_tokens": 4, "prompt": "Hi"}
    elif path == RESPONSES:
        body = {"model": "m", "max_output_tokens": 4, "input": "Hi"}
    return {**body, **fields}


@dataclass
class Collected:
    """A chat answer as a client puts it together.

    Attributes:
        finish: finish reasons, in order.
        calls: name, id, arguments.
        chunks: of the stream.
    """

    text: str = ""
    finish: list[str] = field(default_factory=list)
    calls: list[dict[str, str]] = field(default_factory=list)
    chunks: list[Any] = field(default_factory=list)


def collect(answer: httpx2.Response) -> Collected:
    """Either kind of answer to a chat request with one choice; fails where strict clients do."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"] != "text/event-stream":
        return _whole(answer.json())
    *chunks, done = events_of(answer.text)
    assert done == "[DONE]"
    collected = Collected(chunks=chunks)
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for choice in chunk["choices"]:
            _take(collected, choice)
    return collected


def _whole(body: Any) -> Collected:
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [
        {"id": c["id"], "name": c["function"]["name"], "arguments": c["function"]["arguments"]}
        for c in message.get("tool_calls") or ()
    ]
    return Collected(message["content"] or "", [choice["finish_reason"]], calls)


def _take(collected: Collected, choice: Any) -> None:
    delta = choice["delta"]
    collected.text += delta.get("content") or ""
    for piece in delta.get("tool_calls", ()):
        function = piece["function"]
        if piece["index"] == len(collected.calls):
            begun = {"id": piece["id"], "name": function["name"], "arguments": ""}
            collected.calls.append(begun)
        else:
            # Clients join what comes twice.
            assert piece["index"] == len(collected.calls) - 1
            assert "id" not in piece
            assert "name" not in function
        collected.calls[-1]["arguments"] += function["arguments"]
    if choice["finish_reason"] is not None:
        collected.finish.append(choice["finish_reason"])


async def both(client: httpx2.AsyncClient, body: dict[str, Any]) -> Collected:
    """The streamed answer to a chat request; fails if the whole one is another."""
    whole = collect(await client.post(CHAT, json={**body, "stream": False}))
    streamed = collect(await client.post(CHAT, json={**body, "stream": True}))
    assert streamed.text == whole.text
    assert streamed.finish == whole.finish
    assert [{**c, "id": ""} for c in streamed.calls] == [{**c, "id": ""} for c in whole.calls]
    return streamed


def error_of(answer: httpx2.Response) -> tuple[int, str, str | None]:
    """Status, message and parameter of a refusal in OpenAI's shape."""
    assert answer.headers["content-type"] == "application/json", answer.text
    error = answer.json()["error"]
    assert error.keys() >= {"message", "type", "code", "param"}
    return answer.status_code, error["message"], error["param"]


def anthropic_error_of(answer: httpx2.Response) -> tuple[int, str, str]:
    """Status, type and message of a refusal in Anthropic's shape."""
    assert answer.headers["content-type"] == "application/json", answer.text
    body = answer.json()
    assert body["type"] == "error"
    return answer.status_code, body["error"]["type"], body["error"]["message"]


def parsed(text: str) -> Any:
    """JSON, or a failure that shows the text."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise AssertionError(f"{error}: {text!r}") from error
