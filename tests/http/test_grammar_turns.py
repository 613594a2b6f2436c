"""One client's many large schemas do not keep another's out."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from http_harness import CHAT, Harness, Rules, eventually
from scripted_text import tagged_text, writing

from luce.listener import grammar_pool
from luce.listener.access import Access

pytestmark = pytest.mark.anyio


class GatedText:
    """A text side whose grammars wait until they are let; notes whose were asked for."""

    def __init__(self) -> None:
        self.inner = tagged_text()
        self.gate = threading.Event()
        self.made: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def with_grammar(self, prepared: Any) -> Any:
        self.made.append(prepared.grammar_chars)
        assert self.gate.wait(120)
        return self.inner.with_grammar(prepared)


def body(num_values: int) -> dict[str, Any]:
    values = [f"a value of many, number {number}" for number in range(num_values)]
    schema = {"name": "s", "schema": {"enum": values}}
    return {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 4,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }


async def test_the_one_who_sends_many_waits_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_pool, "MAX_LINE", 4)
    text = GatedText()
    rules = Rules(access=Access(["many", "few"]))
    async with Harness(writing(text, "ab"), texts=(text,), rules=rules) as server:  # type: ignore[arg-type]

        def post(key: str, num_values: int) -> asyncio.Task[Any]:
            headers = {"authorization": f"Bearer {key}"}
            return asyncio.create_task(
                server.client.post(CHAT, json=body(num_values), headers=headers)
            )

        lane = server.generator._admissions.grammars._slow
        many = []
        for num_waiting in range(4):
            many.append(post("many", 1000 + num_waiting))
            await eventually(
                lambda n=num_waiting: text.made and sum(map(len, lane._lines.values())) == n
            )
        few = post("few", 2000)
        # The latest of those who have most is told so at once; the others are all served.
        assert (await asyncio.wait_for(many[3], 60)).status_code == 503
        text.gate.set()
        assert (await asyncio.wait_for(few, 60)).status_code == 200
        assert [(await task).status_code for task in many[:3]] == [200] * 3
    assert len(text.made) == 4
    assert text.made[2] == max(text.made)
