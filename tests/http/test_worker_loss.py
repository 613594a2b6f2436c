"""A worker that dies or fails, in every state of a request: one clear end each."""

from __future__ import annotations

import asyncio
import re

import pytest
from http_harness import Harness, Rules, events_of, eventually, text_of

from luce.errors import ShuttingDown
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


async def test_death_before_admission_falls_back() -> None:
    async with Harness(FakeScript(crash="submit"), FakeScript()) as server:
        answer = await server.ask("x", stream=True)
        assert events_of(answer.text)[0]["model"] == "small"
        await server.idle()


async def test_death_before_admission_with_nobody_else_is_a_503() -> None:
    async with Harness(FakeScript(crash="submit")) as server:
        for stream in (False, True):
            refused = await server.ask("x", stream=stream)
            assert refused.status_code == 503
            await eventually(lambda: server.models[0].handle.state.value == "lost")
            assert refused.json()["error"]["code"] == "worker_lost"
            await server.idle()
            await server.connect(server.models[0])
            await server.ready()


async def test_death_in_mid_stream_is_an_error_event_and_an_end() -> None:
    script = FakeScript(reply=list(b"abcdef"), crash="tokens", crash_tokens=3)
    async with Harness(script, FakeScript()) as server:
        answer = await server.ask("x", stream=True)
        assert answer.status_code == 200
        events = events_of(answer.text)
        assert text_of([e for e in events if "choices" in e]) == "abc"
        assert events[-2]["error"]["code"] == "worker_lost"
        assert events[-2]["error"]["type"] == "server_error"
        assert events[-1] == "[DONE]"
        assert sum("error" in e for e in events if e != "[DONE]") == 1
        await server.idle()


async def test_death_during_a_whole_answer_is_a_503() -> None:
    script = FakeScript(reply=list(b"abcdef"), crash="tokens", crash_tokens=3)
    async with Harness(script) as server:
        answer = await server.ask("x")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "worker_lost"
        await server.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_failure_ends_one_request_only(stream: bool) -> None:
    async with Harness(FakeScript(fail_error="InternalError")) as server:
        answer = await server.ask("x", stream=stream)
        if stream:
            assert events_of(answer.text)[-2]["error"]["code"] == "internal_error"
        else:
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "internal_error"
        await server.idle()
        assert server.models[0].handle.state.value == "ready"


async def test_waiters_of_a_dead_worker_get_the_other_model_or_its_successor() -> None:
    hold = FakeScript(max_concurrency=1, hold_after=0)
    async with Harness(hold, hold) as server:
        running = [asyncio.create_task(server.ask(f"run {i}")) for i in range(2)]
        await server.running(2)
        waiting = asyncio.create_task(server.ask("wait"))
        await eventually(lambda: server.router.num_waiting == 1)
        server.models[0].worker.crash()
        await eventually(lambda: server.models[0].handle.state.value == "lost")
        assert not waiting.done()
        server.models[1].worker.crash()
        await eventually(lambda: server.models[1].handle.state.value == "lost")
        late = asyncio.create_task(server.ask("come late"))
        await eventually(lambda: server.router.num_waiting == 2)
        await server.connect(server.models[1])
        await eventually(lambda: len(server.models[1].submits()) == 2)
        server.models[1].worker.release()
        await eventually(lambda: len(server.models[1].submits()) == 3)
        server.models[1].worker.release()
        for task in (waiting, late):
            assert (await task).json()["model"] == "small"
        assert [(await task).status_code for task in running] == [503, 503]
        await server.idle()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (Rules(queue_limit=0), "busy"),
        (Rules(queue_timeout_s=0.1), r"within 0\.1 s"),
    ],
)
async def test_the_queue_limits_hold_during_a_restart(rules: Rules, message: str) -> None:
    async with Harness(FakeScript(), rules=rules) as server:
        server.models[0].worker.crash()
        await eventually(lambda: server.models[0].handle.state.value == "lost")
        refused = await server.ask("x")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "overloaded"
        assert re.search(message, refused.json()["error"]["message"])
        await server.idle()


async def test_too_long_for_the_model_that_is_up_waits_for_the_one_that_restarts() -> None:
    async with Harness(FakeScript(), FakeScript(max_ctx=30)) as server:
        server.models[0].worker.crash()
        await eventually(lambda: server.models[0].handle.state.value == "lost")
        long = asyncio.create_task(server.ask("long " * 20, max_tokens=4))
        await eventually(lambda: server.router.num_waiting == 1)
        assert (await server.ask("short", max_tokens=4)).json()["model"] == "small"
        await server.connect(server.models[0])
        assert (await long).json()["model"] == "big"
        await server.idle()


async def test_abort_of_running_requests_is_an_error_end() -> None:
    """What a shutdown does when the grace is over."""
    script = FakeScript(reply=[97] * 1000, hold_after=100)
    async with Harness(script) as server:
        streamed = asyncio.create_task(server.ask("x", stream=True))
        whole = asyncio.create_task(server.ask("x"))
        await server.running(2)
        await eventually(lambda: server.generator.num_running == 2)
        server.generator.abort_all(ShuttingDown("The server is stopping."))
        events = events_of((await streamed).text)
        assert events[-2]["error"]["code"] == "shutting_down"
        assert events[-1] == "[DONE]"
        assert (await whole).status_code == 503
        assert {c.reason for c in server.models[0].cancels()} == {"shutdown"}
        await server.idle()


async def test_an_abort_ends_requests_that_the_worker_has_not_answered_yet() -> None:
    async with Harness(FakeScript(stall_reading=True)) as server:
        asks = [asyncio.create_task(server.ask("x", stream=stream)) for stream in (True, False)]
        await eventually(lambda: server.models[0].handle.in_flight == 2)
        server.generator.abort_all(ShuttingDown("The server is stopping."))
        for ask in asks:
            answer = await ask
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        assert server.in_flight() == 2, "the worker may still take them"
        server.models[0].worker.crash()
        await server.idle()


async def test_an_abort_in_the_moment_of_admission_is_not_lost() -> None:
    """The worker's answer has come, and the request has not been told yet."""
    async with Harness(FakeScript(hold_after=1)) as server:

        def abort() -> None:
            if server.models[0].handle.in_flight:
                server.generator.abort_all(ShuttingDown("The server is stopping."))

        server.models[0].handle.on_change.append(abort)
        answer = await server.ask("x", stream=True)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        await eventually(lambda: len(server.models[0].cancels()) == 1)
        await server.idle()


async def test_an_abort_ends_a_request_that_waits_for_room() -> None:
    async with Harness(FakeScript(max_concurrency=1, hold_after=1)) as server:
        held = asyncio.create_task(server.ask("x", stream=True))
        await eventually(lambda: server.generator.num_running == 1)
        waiting = asyncio.create_task(server.ask("y"))
        await eventually(lambda: server.router.num_waiting == 1)
        server.generator.abort_all(ShuttingDown("The server is stopping."))
        assert (await waiting).json()["error"]["code"] == "shutting_down"
        assert events_of((await held).text)[-2]["error"]["code"] == "shutting_down"
        await server.idle()


async def test_seeded_storm_leaves_every_counter_at_zero() -> None:
    """Arrivals, cancels and crashes in random order: everything ends and nothing is left."""
    import random

    rng = random.Random(7)
    script = FakeScript(max_concurrency=3, token_delay_s=0.002)
    async with Harness(script, script) as server:

        async def visit(index: int) -> None:
            await asyncio.sleep(rng.random() * 1.0)
            ask = asyncio.create_task(server.ask(f"visitor {index}", stream=index % 2 == 0))
            if rng.random() < 0.4:
                await asyncio.sleep(rng.random() * 0.05)
                ask.cancel()
                await asyncio.gather(ask, return_exceptions=True)
                return
            assert (await ask).status_code in (200, 503)

        async def chaos() -> None:
            for turn in range(4):
                await asyncio.sleep(0.25)
                model = server.models[turn % 2]
                model.worker.crash()
                await eventually(lambda m=model: m.handle.state.value == "lost")  # type: ignore[misc]
                await server.connect(model)
                await server.ready()

        await asyncio.gather(chaos(), *(visit(index) for index in range(150)))
        await server.idle()
        assert (await server.ask("after the storm")).status_code == 200
