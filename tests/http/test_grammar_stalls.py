"""A client's expensive schemas hold up nobody else's requests."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from http_harness import CHAT, Harness, eventually
from scripted_text import tagged_text, writing

pytestmark = pytest.mark.anyio

LARGE = {"enum": [f"a value of many, number {number}" for number in range(1000)]}


class GatedText:
    """A text side that makes large grammars only when it is let."""

    def __init__(self) -> None:
        self.inner = tagged_text()
        self.gate = threading.Event()
        self.num_made = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def with_grammar(self, prepared: Any) -> Any:
        if prepared.grammar_chars > 10_000:
            self.num_made += 1
            assert self.gate.wait(60)
        return self.inner.with_grammar(prepared)


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, **fields}


def schema_body(schema: dict[str, Any]) -> dict[str, Any]:
    return body(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    )


async def test_others_are_answered_while_large_schemas_compile() -> None:
    text = GatedText()
    async with Harness(writing(text, "ab"), texts=(text,)) as server:  # type: ignore[arg-type]
        large = [
            asyncio.create_task(server.client.post(CHAT, json=schema_body(LARGE))) for _ in range(6)
        ]
        while not text.num_made:
            await asyncio.sleep(0.01)
        count = "/v1/messages/count_tokens"
        for path, sent in (
            (CHAT, body()),
            (CHAT, body(regex="[ab]+")),
            (count, body()),
            ("/tokenize", {"content": "hi"}),
        ):
            response = await asyncio.wait_for(server.client.post(path, json=sent), 60)
            assert response.status_code == 200, response.text
        assert not any(task.done() for task in large)
        text.gate.set()
        assert {(await task).status_code for task in large} == {200}


async def test_who_left_is_not_compiled_for() -> None:
    text = GatedText()
    async with Harness(writing(text, "ab"), texts=(text,)) as server:  # type: ignore[arg-type]
        large = [
            asyncio.create_task(server.client.post(CHAT, json=schema_body(LARGE))) for _ in range(5)
        ]
        while not text.num_made:
            await asyncio.sleep(0.01)
        tasks = server.http.server_state.tasks
        await eventually(lambda: len(tasks) == 5)
        for task in large:
            task.cancel()
        await asyncio.gather(*large, return_exceptions=True)
        await eventually(lambda: not tasks)
        text.gate.set()
        last = await asyncio.wait_for(server.client.post(CHAT, json=schema_body(LARGE)), 60)
        assert last.status_code == 200
        assert text.num_made == 2
