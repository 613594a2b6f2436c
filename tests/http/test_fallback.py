"""Several models behind one address: who serves what, who waits, who is refused."""

from __future__ import annotations

import asyncio
import time

import pytest
from http_harness import ByteText, Harness, Rules, events_of, eventually

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

HOLD_ONE = FakeScript(max_concurrency=1, hold_after=0)


async def test_primary_serves_whatever_name_is_asked_for() -> None:
    async with Harness(FakeScript(), FakeScript()) as server:
        for name in (None, "", "auto", "big", "small", "gpt-4o"):
            assert (await server.ask("x", model=name)).json()["model"] == "big"
        assert server.models[1].submits() == []


async def test_busy_primary_falls_back_with_the_others_own_text() -> None:
    texts = (
        ByteText(prefix="BIG:", generation_defaults={"temperature": 0.9}),
        ByteText(prefix="small>", generation_defaults={"temperature": 0.1, "top_k": 7}),
    )
    async with Harness(HOLD_ONE, FakeScript(), texts=texts) as server:
        first = asyncio.create_task(server.ask("one", stream=True))
        await eventually(lambda: server.models[0].worker.in_flight == 1)
        second = await server.ask("two", stream=True)
        events = events_of(second.text)
        assert {event["model"] for event in events[:-1]} == {"small"}
        assert server.models[1].prompts() == ["small>two"]
        assert server.models[1].submits()[0].sampling.temperature == 0.1
        assert server.models[1].submits()[0].sampling.top_k == 7
        server.models[0].worker.release()
        assert events_of((await first).text)[0]["model"] == "big"
        assert server.models[0].submits()[0].sampling.temperature == 0.9
        await server.idle()


async def test_worker_without_kv_room_falls_back() -> None:
    """The slots are free, the worker says no all the same: only its answer counts."""
    busy = FakeScript(refuse_next=1, refuse_reason="capacity")
    async with Harness(busy, FakeScript()) as server:
        assert (await server.ask("x")).json()["model"] == "small"
        assert (await server.ask("y")).json()["model"] == "big"
        assert server.models[0].handle.in_flight == 0
        await server.idle()


async def test_everyone_busy_waits_first_come_first_served() -> None:
    async with Harness(HOLD_ONE, HOLD_ONE) as server:
        running = [asyncio.create_task(server.ask(f"run {i}")) for i in range(2)]
        await server.running(2)
        waiting = []
        for index in range(3):
            waiting.append(asyncio.create_task(server.ask(f"wait {index}")))
            await eventually(lambda n=index + 1: server.router.num_waiting == n)  # type: ignore[misc]
        answers = await server.let_go(*running, *waiting)
        assert [answer.status_code for answer in answers] == [200] * 5
        prompts = [p for m in server.models for p in m.prompts() if p.startswith("wait")]
        assert sorted(prompts) == ["wait 0", "wait 1", "wait 2"]
        assert all(model.text.num_prepared <= 5 for model in server.models)
        await server.idle()


async def test_full_queue_is_a_503_with_retry_after() -> None:
    async with Harness(HOLD_ONE, rules=Rules(queue_limit=1)) as server:
        running = asyncio.create_task(server.ask("run"))
        await server.running(1)
        waiting = asyncio.create_task(server.ask("wait"))
        await eventually(lambda: server.router.num_waiting == 1)
        for stream in (False, True):
            refused = await server.ask("refused", stream=stream)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "overloaded"
            assert int(refused.headers["retry-after"]) >= 1
        answers = await server.let_go(running, waiting)
        assert [answer.status_code for answer in answers] == [200, 200]
        await server.idle()


async def test_queue_limit_zero_never_waits() -> None:
    async with Harness(HOLD_ONE, rules=Rules(queue_limit=0)) as server:
        running = asyncio.create_task(server.ask("run"))
        await server.running(1)
        assert (await server.ask("refused")).status_code == 503
        assert not running.done()
        server.models[0].worker.release()
        assert (await running).status_code == 200


async def test_wait_that_is_too_long_is_a_503() -> None:
    async with Harness(HOLD_ONE, rules=Rules(queue_timeout_s=0.2)) as server:
        running = asyncio.create_task(server.ask("run"))
        await server.running(1)
        started = time.monotonic()
        refused = await server.ask("wait")
        assert time.monotonic() - started > 0.15
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "overloaded"
        assert "within 0.2 s" in refused.json()["error"]["message"]
        assert refused.headers["retry-after"]
        assert server.router.num_waiting == 0
        server.models[0].worker.release()
        assert (await running).status_code == 200
        await server.idle()


async def test_room_that_appears_without_a_retirement_is_noticed() -> None:
    """The worker refuses twice and nothing else ever happens: the tick asks again."""
    script = FakeScript(refuse_next=2, refuse_reason="capacity")
    async with Harness(script) as server:
        started = time.monotonic()
        assert (await server.ask("x")).status_code == 200
        assert time.monotonic() - started < 30
        assert len(server.models[0].submits()) == 3


async def test_busy_waiters_do_not_spin() -> None:
    script = FakeScript(refuse_next=10_000, refuse_reason="capacity")
    async with Harness(script) as server:
        asks = [asyncio.create_task(server.ask(f"{i}")) for i in range(2)]
        await asyncio.sleep(1.0)
        assert len(server.models[0].submits()) < 16
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        await server.idle()


async def test_prompt_too_long_for_the_primary_goes_to_the_other() -> None:
    async with Harness(FakeScript(max_ctx=32), FakeScript(max_ctx=256)) as server:
        assert (await server.ask("x" * 100)).json()["model"] == "small"
        refused = await server.ask("x" * 300)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert server.models[0].submits() == []
        await server.idle()


async def test_misfit_everywhere_is_refused_at_once_even_if_all_are_busy() -> None:
    scripts = (
        FakeScript(max_ctx=32, max_concurrency=1, hold_after=0),
        FakeScript(max_ctx=64, max_concurrency=1, hold_after=0),
    )
    async with Harness(*scripts) as server:
        running = [asyncio.create_task(server.ask("run")) for _ in range(2)]
        await server.running(2)
        refused = await server.ask("x" * 100)
        assert refused.status_code == 400
        assert server.router.num_waiting == 0
        for model in server.models:
            model.worker.release()
        await asyncio.gather(*running)
        await server.idle()


async def test_worker_that_says_never_fits_strikes_itself_out() -> None:
    never = FakeScript(
        refuse_next=1,
        refuse_reason="never_fits",
        refuse_error="ContextLengthExceeded",
        refuse_detail="5 tokens, the pool has 4.",
    )
    async with Harness(never, FakeScript()) as server:
        assert (await server.ask("hello")).json()["model"] == "small"
        await server.idle()
    async with Harness(never) as server:
        refused = await server.ask("hello")
        assert refused.status_code == 400
        assert "5 tokens, the pool has 4." in refused.json()["error"]["message"]
        await server.idle()


async def test_failed_admission_ends_the_request_without_fallback() -> None:
    failing = FakeScript(
        refuse_next=1,
        refuse_reason="failed",
        refuse_error="DeviceOutOfMemory",
        refuse_detail="no memory.",
    )
    async with Harness(failing, FakeScript()) as server:
        refused = await server.ask("hello")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "out_of_memory"
        assert server.models[1].submits() == []
        await server.idle()
        assert (await server.ask("hello")).json()["model"] == "big"


async def test_bad_bodies_take_no_capacity_and_no_fallback() -> None:
    async with Harness(FakeScript(), FakeScript()) as server:
        assert (await server.ask("refuse me")).status_code == 400
        assert server.models[1].text.num_prepared == 0
        await server.idle()


async def test_waiters_are_told_when_the_server_stops() -> None:
    async with Harness(HOLD_ONE) as server:
        running = asyncio.create_task(server.ask("run"))
        await server.running(1)
        waiting = asyncio.create_task(server.ask("wait"))
        await eventually(lambda: server.router.num_waiting == 1)
        server.router.shut_down()
        refused = await waiting
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert (await server.ask("late")).json()["error"]["code"] == "shutting_down"
        server.models[0].worker.release()
        assert (await running).status_code == 200
