"""Models that take turns on a device, over HTTP; names of tests are rows of the specification.

Row A33 (a model of several slots is refused) is none of ours: `test_a5` swaps such models.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from http_harness import CHAT, chat_body, eventually
from swap_harness import SwapHarness, SwapRules

from luce.errors import ModelFileError, WorkerStartError
from luce.listener import residents
from luce.placement.effects import CoordinatorOptions
from luce.placement.turns import SHORTEST_TURN_S, TurnOptions
from luce.protocol.messages import Control
from luce.testing.fake_script import FakeScript
from luce.workers.handle import WorkerState

pytestmark = pytest.mark.anyio


async def test_a1_a_named_model_that_is_not_resident_comes_in() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        start = server.transitions("small")
        assert start == [("evict", "cold")]
        answer = await server.named("small")
        assert (answer.status_code, answer.json()["model"]) == (200, "small")
        assert server.transitions("small") == [*start, ("reinstate", None)]
        assert server.transitions("big") == [("evict", "cold")]
        await server.idle()


async def test_nobody_is_served_before_the_start_is_over() -> None:
    """Who is evicted on the way would not go if it held a request, and the start would fail."""
    scripts = FakeScript(), FakeScript(hold_controls=["evict"])
    async with SwapHarness(*scripts, wait_ready=False) as server:
        start = asyncio.create_task(server.ready())
        worker = server.worker("small")
        await eventually(lambda: any(isinstance(m, Control) for m in worker.received))
        assert server.models[1].handle.state is WorkerState.READY
        health = await server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        for name in ("big", "small", None):
            answer = await server.named(name)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading")
        worker.release_control()
        await start
        assert (await server.client.get("/health")).status_code == 200
        for name in ("small", "big"):
            assert (await server.named(name)).json()["model"] == name
        await server.idle()


async def test_a2_it_waits_until_the_other_has_ended() -> None:
    async with SwapHarness(FakeScript(hold_after=2), FakeScript()) as server:
        first = server.asking("big", "held text")
        await server.running(1)
        second = server.asking("small")
        await server.reaches("big", "draining")
        await asyncio.sleep(0.1)
        assert not second.done()
        assert server.transitions("big") == []
        assert (await server.status_of("big"))["draining"]
        server.worker("big").release()
        assert (await first).json()["choices"][0]["message"]["content"] == "held text"
        assert (await second).json()["model"] == "small"
        await server.idle()


async def test_a3_transitions_of_a_model_run_on_one_thread() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        for name in ("small", "big", "small"):
            assert (await server.named(name)).status_code == 200
        for name in ("small", "big"):
            assert len({t.thread_id for t in server.worker(name).transitions}) == 1


async def test_a4_five_at_once_cause_one_swap() -> None:
    async with SwapHarness(FakeScript(), FakeScript(reinstate_s=0.1)) as server:
        answers = await asyncio.gather(*(server.named("small") for _ in range(5)))
        assert [answer.status_code for answer in answers] == [200] * 5
        assert server.swaps() == 1
        assert (await server.status_of("small"))["swaps_in"] == 1
        await server.idle()


@pytest.mark.parametrize("slots", [1, 4])
async def test_a5_interleaved_requests_are_served_in_cohorts(slots: int) -> None:
    scripts = [FakeScript(token_delay_s=0.002, max_concurrency=slots) for _ in range(2)]
    scripts[0].hold_after = 1
    async with SwapHarness(*scripts, rules=SwapRules(queue_limit=64)) as server:
        asks = [server.asking("big")]
        await server.running(1)
        for index in range(1, 40):
            asks.append(server.asking(("big", "small")[index % 2]))
            await eventually(lambda n=index + 1: server.router.num_open + server.in_flight() >= n)  # type: ignore[misc]
        server.worker("big").script.hold_after = None
        server.worker("big").release()
        answers = await asyncio.gather(*asks)
        assert [answer.status_code for answer in answers] == [200] * 40
        assert [answer.json()["model"] for answer in answers] == ["big", "small"] * 20
        assert 1 <= server.swaps() <= 20
        await server.idle()


async def test_b63_who_asks_in_a_row_is_served_in_one_turn() -> None:
    """With the command line's turns; time passes when the test says so."""
    now = [0.0]
    turns = TurnOptions(min_residency_s=None)
    rules = SwapRules(turns=turns, clock_s=lambda: now[0])
    async with SwapHarness(FakeScript(), FakeScript(), rules=rules) as server:
        here, away, swaps = "big", "small", server.swaps()
        for _ in range(4):
            waits = server.asking(away)
            await eventually(lambda: server.router.num_open == 1)
            for _ in range(5):
                assert (await server.named(here)).json()["model"] == here
            assert not waits.done()
            assert server.swaps() == swaps
            await eventually(lambda: server.in_flight() == 0)
            now[0] += SHORTEST_TURN_S
            assert (await waits).json()["model"] == away
            here, away, swaps = away, here, swaps + 1
            assert server.swaps() == swaps
        await server.idle()


async def test_a6_who_brought_a_model_in_is_served_before_it_goes() -> None:
    scripts = (FakeScript(), FakeScript(reinstate_s=0.1), FakeScript())
    async with SwapHarness(*scripts) as server:
        asks = [server.asking("small")]
        await server.reaches("small", "loading")
        asks.append(server.asking("third"))
        done: list[str] = []
        for ask in asks:
            ask.add_done_callback(lambda ended: done.append(ended.result().json()["model"]))
        await asyncio.gather(*asks)
        await asyncio.sleep(0)
        assert done == ["small", "third"]
        assert server.swaps() == 2


async def test_a7_a_swap_outlives_the_client_that_caused_it() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        server.worker("small").script.hold_controls = ["reinstate"]
        ask = server.asking("small")
        await server.reaches("small", "loading")
        ask.cancel()
        await eventually(lambda: server.router.num_open == 0)
        server.worker("small").release_control()
        await server.reaches("small", "ready")
        await eventually(lambda: not server.coordinator.arriving)
        status = await server.status()
        assert (status["waiting"], status["swap_active"]) == (0, False)
        assert server.worker("small").in_flight == 0
        await server.idle()


async def test_a8_a_waiter_that_leaves_is_counted_no_more() -> None:
    async with SwapHarness(FakeScript(hold_after=1), FakeScript()) as server:
        held = server.asking("big")
        await server.running(1)
        first = server.asking("small")
        await eventually(lambda: server.router.waiting_for("small") == 1)
        second = server.asking("small")
        await eventually(lambda: server.router.waiting_for("small") == 2)
        assert server.router.num_waiting == 1
        assert (await server.status_of("small"))["waiting_for_residency"] == 2
        second.cancel()
        await eventually(lambda: server.router.waiting_for("small") == 1)
        assert server.router.num_waiting == 0
        server.worker("big").release()
        assert (await first).status_code == (await held).status_code == 200
        await server.idle()


async def test_a9_a_model_that_refuses_to_go_serves_on() -> None:
    refusing = FakeScript(refuse_evict=1, evict_error="it holds the last copy")
    async with SwapHarness(refusing, FakeScript()) as server:
        answer = await server.named("small")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (503, "model_unavailable")
        assert "big" in error["message"]
        assert "it holds the last copy" in error["message"]
        assert 0 < int(answer.headers["retry-after"]) <= 30
        assert (await server.named("big")).status_code == 200
        evictions = server.transitions("big")
        again = await server.named("small")
        assert again.status_code == 503
        assert server.transitions("big") == evictions
        status = await server.status_of("small")
        assert (status["residency"], status["failed_retry_in_ms"] > 0) == ("failed", True)
        assert "it holds the last copy" in status["last_residency_error"]
        await server.idle()


async def test_a10_who_was_displaced_comes_back_when_the_target_fails() -> None:
    failing = FakeScript(fail_reinstate=1, reinstate_error="the file is broken")
    async with SwapHarness(FakeScript(), failing) as server:
        answer = await server.named("small")
        assert answer.status_code == 503
        assert "the file is broken" in answer.json()["error"]["message"]
        assert (await server.status_of("small"))["residency"] == "failed"
        assert (await server.named("big")).json()["model"] == "big"
        assert server.transitions("big") == [("evict", "cold"), ("reinstate", None)]
        await server.cooled_down("small")
        assert (await server.named("small")).json()["model"] == "small"
        assert (await server.status_of("small"))["residency"] == "resident"
        await server.idle()


async def test_a12_nobody_is_left_when_the_way_back_fails_too() -> None:
    scripts = FakeScript(fail_reinstate=1), FakeScript(fail_reinstate=1)
    async with SwapHarness(*scripts) as server:
        assert (await server.named("small")).status_code == 503
        await server.reaches("big", "cooldown")
        assert server.state("small") == "cooldown"
        nobody = await server.named(None)
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (503, "model_unavailable")
        await server.cooled_down("small")
        assert (await server.named("small")).json()["model"] == "small"
        assert (await server.named(None)).json()["model"] == "small"


async def test_a13_a_request_for_any_model_waits_for_a_swap_under_way() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        server.worker("small").script.hold_controls = ["reinstate"]
        named = server.asking("small")
        await server.reaches("small", "loading")
        unnamed = [server.asking(name) for name in (None, "", "auto")]
        await eventually(lambda: server.router.num_waiting == 3)
        server.worker("small").release_control()
        answers = [await ask for ask in (named, *unnamed)]
        assert [answer.json()["model"] for answer in answers] == ["small"] * 4


async def test_a14_a_request_for_any_model_never_swaps() -> None:
    async with SwapHarness(FakeScript(max_concurrency=1), FakeScript()) as server:
        answers = await asyncio.gather(*(server.named("auto") for _ in range(6)))
        assert [answer.json()["model"] for answer in answers] == ["big"] * 6
        assert server.swaps() == 0


async def test_any_model_is_not_a_resident_that_drains() -> None:
    rules = SwapRules(devices={"third": ("cpu:1",)})
    scripts = FakeScript(hold_after=1), FakeScript(), FakeScript()
    async with SwapHarness(*scripts, rules=rules) as server:
        held = server.asking("big")
        await server.running(1)
        swapping = server.asking("small")
        await server.reaches("big", "draining")
        assert (await server.named(None)).json()["model"] == "third"
        server.worker("big").release()
        assert [(await ask).status_code for ask in (held, swapping)] == [200, 200]


async def test_what_no_resident_can_hold_names_those_to_ask_for() -> None:
    small = FakeScript(max_ctx=16, kv_pool_tokens=64)
    async with SwapHarness(small, FakeScript()) as server:
        answer = await server.named(None, "far more text than sixteen tokens")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "small" in error["message"]
        pinned = await server.named("big", "far more text than sixteen tokens")
        assert pinned.status_code == 400
        assert (server.swaps(), server.transitions("big")) == (0, [])
        answered = await server.named("small", "far more text than sixteen tokens")
        assert answered.json()["model"] == "small"


async def test_a16_a_model_on_a_device_of_its_own_moves_nobody() -> None:
    rules = SwapRules(devices={"third": ("cpu:1",)})
    async with SwapHarness(FakeScript(), FakeScript(), FakeScript(), rules=rules) as server:
        assert server.state("third") == "ready"
        assert (await server.named("third")).json()["model"] == "third"
        assert server.transitions("third") == server.transitions("big") == []


async def test_a17_listed_weights_stay_on_their_device() -> None:
    rules = SwapRules(turns=TurnOptions(kept_weights=("big",), linger_s=0.0))
    async with SwapHarness(FakeScript(weights_bytes=500), FakeScript(), rules=rules) as server:
        assert (await server.named("small")).status_code == 200
        assert server.transitions("big") == [("evict", "warm")]
        status = await server.status_of("big")
        assert (status["residency"], status["weights_resident"]) == ("evicted", True)
        assert status["retained_devices"] == ["cpu:0"]
        assert (status["retained_bytes"], status["weight_device_bytes"]) == (500, 500)


async def test_weights_go_to_host_memory_while_there_is_room() -> None:
    rules = SwapRules(turns=TurnOptions(host_bytes=150, linger_s=0.0))
    async with SwapHarness(FakeScript(), FakeScript(), FakeScript(), rules=rules) as server:
        assert server.transitions("small") == [("evict", "host")]
        assert server.transitions("third") == [("evict", "cold")]
        assert (await server.status_of("small"))["host_weight_bytes"] == 100
        assert (await server.named("small")).status_code == 200
        # The parked weights of the one that comes in are still there when this one goes.
        assert server.transitions("big") == [("evict", "cold")]
        assert (await server.named("big")).status_code == 200
        assert server.transitions("small")[-1] == ("evict", "host")


async def test_a_copy_that_stays_while_its_model_serves_still_takes_its_place() -> None:
    rules = SwapRules(turns=TurnOptions(host_bytes=150, linger_s=0.0))
    scripts = FakeScript(), FakeScript(keeps_parked=True)
    async with SwapHarness(*scripts, rules=rules) as server:
        assert server.transitions("small") == [("evict", "host")]
        assert (await server.named("small")).status_code == 200
        assert (await server.status_of("small"))["host_weight_bytes"] == 100
        assert server.transitions("big") == [("evict", "cold")]
        assert (await server.named("big")).status_code == 200
        assert server.transitions("small")[-1] == ("evict", "host")
        assert (await server.status_of("big"))["host_weight_bytes"] == 0


async def test_weights_that_cannot_be_parked_are_dropped() -> None:
    rules = SwapRules(turns=TurnOptions(host_bytes=1000, linger_s=0.0))
    unable = FakeScript(refuse_evict=1, evict_error="no pinned memory")
    async with SwapHarness(unable, FakeScript(), rules=rules) as server:
        assert (await server.named("small")).json()["model"] == "small"
        assert server.transitions("big") == [("evict", "host"), ("evict", "cold")]


async def test_a23_tokens_of_a_model_that_is_not_resident_are_counted() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        body = {"model": "small", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
        counted = await server.client.post("/v1/messages/count_tokens", json=body)
        assert (counted.status_code, counted.json()) == (200, {"input_tokens": 2})
        listed = (await server.client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["big", "small"]
        assert server.swaps() == 0


@pytest.mark.parametrize("unknown", ["reject", "primary"])
async def test_a24_a_name_nobody_has(unknown: Any) -> None:
    rules = SwapRules(unknown=unknown)
    async with SwapHarness(FakeScript(), FakeScript(), rules=rules) as server:
        answer = await server.named("gpt-9")
        tokens = await server.client.post("/tokenize", json={"model": "gpt-9", "content": "abc"})
        if unknown == "primary":
            assert (answer.status_code, answer.json()["model"]) == (200, "big")
            assert (tokens.status_code, tokens.json()["count"]) == (200, 3)
            assert (await server.named("small")).status_code == 200
            assert (await server.named("gpt-9")).json()["model"] == "big"
            assert server.swaps() == 2
        else:
            assert (answer.status_code, tokens.status_code) == (404, 404)
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("model_not_found", "model")
            assert "available models: big, small" in error["message"]
            assert server.swaps() == 0


@pytest.mark.parametrize("name", [None, "", "auto"])
async def test_counting_wants_a_name(name: str | None) -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        tokens = await server.client.post("/tokenize", json={"model": name, "content": "abc"})
        assert tokens.status_code == 400


async def test_a_pinned_request_never_spills() -> None:
    rules = SwapRules(devices={"small": ("cpu:1",)}, queue_limit=0)
    script = FakeScript(max_concurrency=1, hold_after=1)
    async with SwapHarness(script, FakeScript(), rules=rules) as server:
        held = server.asking("big")
        await server.running(1)
        refused = await server.named("big")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert server.models[1].submits() == []
        server.worker("big").release()
        assert (await held).status_code == 200


async def test_a28_the_status_answers_in_the_middle_of_a_load() -> None:
    async with SwapHarness(FakeScript(), FakeScript(hold_controls=["reinstate"])) as server:
        ask = server.asking("small")
        await server.reaches("small", "loading")
        for _ in range(20):
            status = await server.status()
            assert (status["swap_active"], server.state("small")) == (True, "loading")
        assert not ask.done()
        server.worker("small").release_control()
        assert (await ask).status_code == 200
        await eventually(lambda: not server.coordinator.arriving)
        assert not (await server.status())["swap_active"]


async def test_a31_with_no_queue_the_first_drives_and_the_second_is_refused() -> None:
    async with SwapHarness(FakeScript(), FakeScript(), rules=SwapRules(queue_limit=0)) as server:
        server.worker("small").script.hold_controls = ["reinstate"]
        first = server.asking("small")
        await server.reaches("small", "loading")
        second = await server.named("small")
        assert (second.status_code, second.json()["error"]["code"]) == (503, "overloaded")
        assert (await server.named("big")).status_code == 503
        server.worker("small").release_control()
        assert (await first).status_code == 200
        await server.idle()


async def test_a_drain_that_takes_too_long_gives_the_swap_up_and_kills_nothing() -> None:
    rules = SwapRules(coordinator=CoordinatorOptions(drain_timeout_s=0.2))
    async with SwapHarness(FakeScript(hold_after=1), FakeScript(), rules=rules) as server:
        held = server.asking("big", "goes on")
        await server.running(1)
        answer = await server.named("small")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "swap_drain_timeout")
        assert server.state("big") == "ready"
        server.worker("big").release()
        assert (await held).json()["choices"][0]["message"]["content"] == "goes on"
        await server.idle()  # It drains at once.
        assert (await server.named("small")).json()["model"] == "small"


async def test_a_stream_that_is_swapped_around_is_whole() -> None:
    async with SwapHarness(FakeScript(hold_after=3), FakeScript()) as server:
        body = {**chat_body("a longer text", model="big"), "stream": True}
        streamed = asyncio.create_task(server.client.post(CHAT, json=body))
        await server.running(1)
        other = server.asking("small")
        await server.reaches("big", "draining")
        server.worker("big").release()
        text = (await streamed).text
        assert text.count("data: [DONE]") == 1
        assert (await other).json()["model"] == "small"


# --- the start --------------------------------------------------------------------------------


async def test_the_start_loads_and_evicts_one_by_one_before_the_resident() -> None:
    scripts = FakeScript(), FakeScript(hold_controls=["evict"]), FakeScript()
    server = SwapHarness(*scripts)
    entering = asyncio.create_task(server.__aenter__())
    await eventually(lambda: server.worker("small").transitions)
    assert server.launcher.num_launched == {"big": 0, "small": 1, "third": 0}
    loading = await server.named("big")
    assert (loading.status_code, loading.json()["error"]["code"]) == (503, "model_loading")
    server.worker("small").release_control()
    try:
        await entering
        assert server.transitions("third") == [("evict", "cold")]
        assert (server.transitions("big"), server.swaps()) == ([], 0)
    finally:
        await server.__aexit__()


async def test_a_model_that_cannot_be_evicted_refuses_the_start() -> None:
    server = SwapHarness(FakeScript(), FakeScript(refuse_evict=1))
    with pytest.raises(WorkerStartError, match=r"small cannot take turns.*stays"):
        await server.__aenter__()
    await server.__aexit__()


# --- workers that die -------------------------------------------------------------------------


async def test_a_worker_that_dies_while_it_is_evicted_has_given_its_memory_back() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        server.worker("big").script.hold_controls = ["evict"]
        ask = server.asking("small")
        await server.reaches("big", "unloading")
        server.worker("big").crash()
        assert (await ask).json()["model"] == "small"
        assert server.state("big") == "unloaded"
        await asyncio.sleep(0.2)
        assert server.launcher.num_launched["big"] == 1  # Nobody started another by itself.
        assert (await server.named("big")).json()["model"] == "big"
        assert server.launcher.num_launched["big"] == 2


async def test_a_worker_that_dies_while_it_comes_in_is_one_failure() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        server.worker("small").script.hold_controls = ["reinstate"]
        ask = server.asking("small")
        await server.reaches("small", "loading")
        server.worker("small").crash()
        assert (await ask).json()["error"]["code"] == "model_unavailable"
        assert (await server.named("big")).json()["model"] == "big"
        server.worker("small").script.hold_controls = []
        await server.cooled_down("small")
        assert (await server.named("small")).json()["model"] == "small"
        await server.idle()


async def test_a_worker_that_does_not_answer_holds_up_nobody_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        monkeypatch.setitem(residents.TRANSITION_LIMIT_S, "evict", 0.1)
        server.worker("big").script.hold_controls = ["evict"]
        assert (await server.named("small")).json()["model"] == "small"
        assert server.state("big") == "unloaded"
        server.worker("big").script.hold_controls = []
        assert (await server.named("big")).json()["model"] == "big"
        assert server.launcher.num_launched["big"] == 2
        await server.idle()


class FirstIsShort(dict[str, float]):
    """Limits of transitions: a moment for the first reinstatement, long enough for all others."""

    def __init__(self) -> None:
        super().__init__()
        self._reinstate_s = itertools.chain([0.1], itertools.repeat(60.0))

    def __missing__(self, op: str) -> float:
        return next(self._reinstate_s) if op == "reinstate" else 60.0


async def test_a_worker_that_does_not_come_in_in_time_is_one_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        monkeypatch.setattr(residents, "TRANSITION_LIMIT_S", FirstIsShort())
        server.worker("small").script.hold_controls = ["reinstate"]
        error = (await server.named("small")).json()["error"]
        assert error["code"] == "model_unavailable"
        assert "did not answer" in error["message"]
        assert (await server.named("big")).json()["model"] == "big"
        await server.idle()


async def test_an_evicted_worker_that_dies_stays_down_until_it_is_asked_for() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        assert server.state("small") == "sleeping"
        server.worker("small").crash()
        await server.reaches("small", "unloaded")
        assert (await server.named("big")).status_code == 200
        assert (await server.named("small")).json()["model"] == "small"
        assert server.launcher.num_launched == {"big": 1, "small": 2}


async def test_a_resident_that_dies_is_started_again_and_can_be_sent_away_meanwhile() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        server.worker("big").crash()
        await eventually(lambda: server.launcher.num_launched["big"] == 2)
        assert (await server.named("big")).json()["model"] == "big"
        server.launcher.failing["big"] = "no process for now"
        server.worker("big").crash()
        await eventually(lambda: server.models[0].handle.state.value == "lost")
        assert (await server.named("small")).json()["model"] == "small"
        del server.launcher.failing["big"]
        assert (await server.named("big")).json()["model"] == "big"


async def test_a_file_that_does_not_load_again_is_a_failed_model() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        server.worker("small").crash()
        await server.reaches("small", "unloaded")
        server.worker("small").script = FakeScript(
            load_error="ModelFileError", load_message="the file is cut off"
        )
        answer = await server.named("small")
        assert answer.status_code == 503
        assert "the file is cut off" in answer.json()["error"]["message"]
        assert (await server.named("big")).json()["model"] == "big"
        server.worker("small").script = FakeScript()
        await server.cooled_down("small")
        assert (await server.named("small")).json()["model"] == "small"


async def test_nobody_waits_for_a_resident_that_cannot_be_started_again() -> None:
    async with SwapHarness(FakeScript(), FakeScript()) as server:
        worker, handle = server.worker("big"), server.models[0].handle
        worker.script = FakeScript(load_error="ModelFileError", load_message="the file is gone")
        worker.crash()
        await eventually(lambda: handle.state is not WorkerState.READY)
        waiting = server.asking("big")
        await eventually(lambda: isinstance(handle.fault, ModelFileError))
        for answer in (await waiting, await server.named("big")):
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                503,
                "model_unavailable",
            )
        assert (await server.status_of("big"))["state"] == "unavailable"
        worker.script = FakeScript()
        await eventually(lambda: handle.state is WorkerState.READY)
        assert (await server.named("big")).json()["model"] == "big"
        await server.idle()
