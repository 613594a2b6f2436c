"""Requests as real clients sent them: `make clients RECORD=1` writes them, prose left out.

What the clients made of the answers is checked by `make clients`, with the clients themselves.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from client_server import ADVANCE, ENDS, ScriptedServer, calling_turn, serving

pytestmark = pytest.mark.anyio

SHAPES = Path(__file__).parent / "client_shapes"
KEY = "my-key"
ANSWER = "The answer is forty-two."
RESULT = "luce-42"


@dataclass(frozen=True)
class Shape:
    """One recorded request."""

    name: str
    tool: str
    call: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def step(self) -> str:
        """What the request is about: `first`, `result`, `title`, `tool-search`."""
        return self.name.rsplit("--", 1)[1]

    @property
    def endpoint(self) -> str:
        return self.path.split("?")[0]


def read(path: Path) -> Shape:
    fields = json.loads(path.read_text("utf-8"))
    del fields["client"], fields["version"]
    return Shape(name=path.stem, **fields)


ALL = [read(path) for path in sorted(SHAPES.glob("*.json"))]
FIRST = [shape for shape in ALL if shape.step == "first"]
LATER = [shape for shape in ALL if shape.step in ("result", "title")]
TOOL_SEARCH = read(SHAPES / "claude-code--tool-search.json")


def each(shapes: list[Shape]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("shape", shapes, ids=lambda shape: shape.name)


async def answer_to(server: ScriptedServer, shape: Shape) -> bytes:
    """The whole body; fails unless it is a 200."""
    response = await server.harness.client.post(
        shape.path, content=json.dumps(shape.body), headers=shape.headers
    )
    assert response.status_code == 200, response.text
    if shape.body.get("stream"):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert ENDS[shape.endpoint] in response.content
    # `make clients`, which does not run in CI, judges clients by this record.
    assert server.exchanges[-1].answer == response.content
    return response.content


def said(shape: Shape, answer: bytes) -> tuple[str, list[str]]:
    """Text and called tools of a streamed answer."""
    lines = [line.removeprefix(b"data: ") for line in answer.split(b"\n") if b"data: {" in line]
    events = [json.loads(line) for line in lines]
    if shape.endpoint == "/v1/chat/completions":
        deltas = [c["delta"] for event in events for c in event["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        names = [call["function"]["name"] for call in calls if "name" in call["function"]]
        return "".join(delta.get("content") or "" for delta in deltas), names
    if shape.endpoint == "/v1/messages":
        deltas = [event["delta"] for event in events if "delta" in event]
        blocks = [event["content_block"] for event in events if "content_block" in event]
        names = [block["name"] for block in blocks if block["type"] == "tool_use"]
        return "".join(delta.get("text", "") for delta in deltas), names
    (end,) = [event["response"] for event in events if event["type"] == "response.completed"]
    names = [item["name"] for item in end["output"] if item["type"] == "function_call"]
    parts = [part for item in end["output"] for part in item.get("content") or ()]
    return "".join(part["text"] for part in parts if part["type"] == "output_text"), names


def serving_shape(shape: Shape, **fields: Any) -> Any:
    return serving(calling_turn(shape.call), ANSWER, (KEY,), tokens_per_step=8, **fields)


def test_every_client_has_been_recorded() -> None:
    clients = {shape.name.rsplit("--", 1)[0] for shape in FIRST}
    assert len(clients) == 9
    assert clients == {shape.name.rsplit("--", 1)[0] for shape in ALL if shape.step == "result"}


@each(FIRST)
async def test_a_first_request_gets_its_tool_called(shape: Shape) -> None:
    async with serving_shape(shape) as server:
        text, tools = said(shape, await answer_to(server, shape))
        assert tools == [shape.tool, shape.tool]
        assert text.strip() == ADVANCE
        (prompt,) = server.prompts()
        assert shape.tool in prompt


@each(LATER)
async def test_a_later_request_gets_its_text(shape: Shape) -> None:
    async with serving_shape(shape) as server:
        answer = await answer_to(server, shape)
        if shape.body.get("stream"):
            assert said(shape, answer) == (ANSWER, [])
        else:
            assert json.loads(answer)["choices"][0]["message"]["content"] == ANSWER
        (prompt,) = server.prompts()
        if shape.step == "result":
            results = prompt.split("<tool_response>")[1:]
            assert [result.count(RESULT) for result in results] == [1, 1]


@each(FIRST)
async def test_the_next_request_continues_the_first_ones_prompt(shape: Shape) -> None:
    later = read(SHAPES / f"{shape.name.removesuffix('first')}result.json")
    async with serving_shape(shape) as server:
        await answer_to(server, shape)
        await answer_to(server, later)
        first, second = server.prompts()
        # The template opens an answer in a way of its own.
        assert second.startswith(first.rpartition("<|im_start|>assistant")[0])


async def test_claude_codes_search_for_a_tool_may_end_in_references() -> None:
    async with serving_shape(TOOL_SEARCH) as server:
        assert said(TOOL_SEARCH, await answer_to(server, TOOL_SEARCH)) == (ANSWER, [])
        (prompt,) = server.prompts()
        listed, _, found = prompt.partition("<tool_response>")
        assert '"name": "NotebookEdit"' in found
        assert '"name": "Bash"' in listed
        assert '"name": "NotebookEdit"' not in listed
        assert "DeferredToolPlaceholder" not in prompt


async def test_a_tool_that_was_found_does_not_change_the_prompt_before_it() -> None:
    found = TOOL_SEARCH.body
    asked = {
        **found,
        "messages": found["messages"][:-2],
        "tools": [tool for tool in found["tools"] if tool["name"] != "NotebookEdit"],
    }
    async with serving_shape(TOOL_SEARCH) as server:
        await answer_to(server, replace(TOOL_SEARCH, body=asked))
        await answer_to(server, TOOL_SEARCH)
        first, second = server.prompts()
        assert second.startswith(first.rpartition("<|im_start|>assistant")[0])


@each(ALL)
async def test_a_request_needs_its_key(shape: Shape) -> None:
    headers = {n: v for n, v in shape.headers.items() if n not in ("authorization", "x-api-key")}
    async with serving_shape(shape) as server:
        response = await server.harness.client.post(shape.path, json=shape.body, headers=headers)
        assert response.status_code == 401
        assert server.prompts() == []
