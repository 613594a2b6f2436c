"""A prompt too long for the models that are up: whether it is worth waiting for one that is not.

400 at once if no configured model will ever hold it; 503 only if one that is down might.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from http_harness import ByteText, FakeModel, Harness, eventually

from luce.testing.fake_script import FakeScript
from luce.workers.handle import WorkerState

pytestmark = pytest.mark.anyio

UP = FakeScript(max_ctx=32)
TOO_LONG = "x" * 40


@dataclass
class ShortText(ByteText):
    """A model trained for 36 tokens."""

    context_length: int = 36


class OneLoads(Harness):
    """`big` serves; of `small` only the text side is there: its worker has said nothing yet."""

    def __init__(self, text: ByteText) -> None:
        super().__init__(UP, FakeScript(), texts=(ByteText(), text))

    async def connect(self, model: FakeModel) -> None:
        if model.name == "big":
            await super().connect(model)

    async def ready(self) -> None:
        await eventually(lambda: self.models[0].handle.state is WorkerState.READY)
        for model in self.models:
            self.served.set_text(model.name, model.text)


def error_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_one_that_loads_could_never_hold_it(stream: bool) -> None:
    async with OneLoads(ShortText()) as server:
        answer = await server.ask(TOO_LONG, stream=stream)
        assert error_of(answer) == (400, "context_length_exceeded")
        assert answer.json()["error"]["param"] == "messages"
        assert "retry-after" not in answer.headers
        assert (await server.ask("short", max_tokens=1)).json()["model"] == "big"
        await server.idle()


async def test_the_one_that_loads_may_hold_it() -> None:
    async with OneLoads(ByteText()) as server:
        answer = await server.ask(TOO_LONG)
        assert error_of(answer) == (503, "model_loading")
        assert answer.headers["retry-after"]
        await server.idle()


async def test_what_the_one_that_loads_thinks_of_the_rest_does_not_matter() -> None:
    """Its template refuses the messages: it may, when it is up; until then it is loading."""
    async with OneLoads(ByteText(prefix="refuse me")) as server:
        answer = await server.ask(TOO_LONG)
        assert error_of(answer) == (503, "model_loading")


async def lose_small(server: Harness) -> FakeModel:
    """The worker of `small` has served, and dies."""
    small = server.models[1]
    await eventually(lambda: small.handle.ready is not None)
    small.worker.crash()
    await eventually(lambda: small.handle.state is WorkerState.LOST)
    return small


async def test_the_one_that_died_could_not_hold_it_either() -> None:
    """Its limits are remembered."""
    async with Harness(UP, FakeScript(max_ctx=36)) as server:
        await lose_small(server)
        assert error_of(await server.ask(TOO_LONG)) == (400, "context_length_exceeded")
        await server.idle()


async def test_the_one_that_died_can_hold_it_and_is_waited_for() -> None:
    async with Harness(UP, FakeScript(max_ctx=64)) as server:
        small = await lose_small(server)
        waiting = asyncio.create_task(server.ask(TOO_LONG, max_tokens=1))
        await eventually(lambda: server.router.num_waiting == 1)
        await server.connect(small)
        assert (await waiting).json()["model"] == "small"
        await server.idle()
