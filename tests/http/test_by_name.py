"""Models chosen by name that all stay resident, over HTTP: the table of A2."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from http_harness import CHAT, Harness, Rules, chat_body, eventually

from luce.routing.policy import ByName, RoutePolicy
from luce.testing.fake_script import FakeScript
from luce.workers.handle import WorkerState

pytestmark = pytest.mark.anyio

MESSAGES = {"model": "small", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}


class NamedHarness(Harness):
    """Two models by name."""

    def policy(self, names: list[str]) -> RoutePolicy:
        return ByName(names)

    async def named(self, model: str | None, **fields: Any) -> Any:
        return await self.client.post(CHAT, json=chat_body(model=model, **fields))


async def test_health_is_not_good_before_every_name_can_be_asked_for(tmp_path: Path) -> None:
    scripts = FakeScript(), FakeScript(load_until_file=str(tmp_path / "loaded"))
    async with NamedHarness(*scripts, wait_ready=False) as server:
        big = server.models[0]
        await eventually(lambda: big.handle.state is WorkerState.READY)
        server.served.set_text("big", big.text)
        assert (await server.named("big")).status_code == 200
        assert (await server.named("small")).json()["error"]["code"] == "model_loading"
        health = await server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        (tmp_path / "loaded").touch()
        await server.ready()
        assert (await server.client.get("/health")).status_code == 200
        server.models[1].worker.crash()
        await eventually(lambda: server.models[1].handle.state is WorkerState.LOST)
        assert (await server.client.get("/health")).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_the_named_model_answers_in_every_dialect(stream: bool) -> None:
    async with NamedHarness(FakeScript(), FakeScript()) as server:
        bodies: dict[str, Any] = {
            CHAT: chat_body(model="small"),
            "/v1/messages": MESSAGES,
            "/v1/responses": {"model": "small", "input": "Hi"},
        }
        for path, body in bodies.items():
            answer = await server.client.post(path, json={**body, "stream": stream})
            assert answer.status_code == 200
            assert '"model":"small"' in answer.text
        assert server.models[0].submits() == []
        assert len(server.models[1].submits()) == len(bodies)


async def test_it_is_waited_for_and_nobody_stands_in() -> None:
    script = FakeScript(max_concurrency=1, hold_after=1)
    async with NamedHarness(script, FakeScript()) as server:
        first = asyncio.create_task(server.named("big"))
        await server.running(1)
        second = asyncio.create_task(server.named("big"))
        await eventually(lambda: server.router.num_waiting == 1)
        assert (await server.named("small")).json()["model"] == "small"
        assert not second.done()
        for number, task in enumerate((first, second), 1):
            await eventually(lambda n=number: len(server.models[0].submits()) == n)  # type: ignore[misc]
            server.models[0].worker.release()
            assert (await task).json()["model"] == "big"
        await server.idle()


async def test_any_model_is_balanced_as_before() -> None:
    script = FakeScript(max_concurrency=1, hold_after=1)
    async with NamedHarness(script, FakeScript()) as server:
        held = asyncio.create_task(server.named(None))
        await server.running(1)
        assert (await server.named("auto")).json()["model"] == "small"
        server.models[0].worker.release()
        assert (await held).json()["model"] == "big"


async def test_a_full_queue_and_an_unknown_name() -> None:
    script = FakeScript(max_concurrency=1, hold_after=1)
    async with NamedHarness(script, FakeScript(), rules=Rules(queue_limit=0)) as server:
        held = asyncio.create_task(server.named("big"))
        await server.running(1)
        assert (await server.named("big")).status_code == 503
        unknown = await server.named("nobody")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        anthropic = await server.client.post("/v1/messages", json={**MESSAGES, "model": "x"})
        assert anthropic.json()["error"]["type"] == "not_found_error"
        assert (await server.named(42)).status_code == 400  # type: ignore[arg-type]
        server.models[0].worker.release()
        assert (await held).status_code == 200


async def test_too_long_for_the_named_model_is_400_at_once() -> None:
    small = FakeScript(max_ctx=16, kv_pool_tokens=64)
    async with NamedHarness(FakeScript(), small) as server:
        answer = await server.client.post(CHAT, json=chat_body("x" * 99, model="small"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            400,
            "context_length_exceeded",
        )
        assert server.models[0].submits() == []


async def test_the_status_says_so() -> None:
    async with NamedHarness(FakeScript(), FakeScript()) as server:
        status = (await server.client.get("/status/json")).json()
        assert status["routing"] == "by-name"
        assert "swap_active" not in status
        assert "residency" not in status["models"][0]
