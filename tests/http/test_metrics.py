"""`/metrics`: what happened to requests and what workers say, in one scrape."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

import pytest
from http_harness import CHAT, Harness, Rules, chat_body, eventually
from prometheus_client.parser import text_string_to_metric_families

from luce.observability import metrics as m
from luce.protocol.messages import WorkerStats
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


class Scrape:
    """The samples of one scrape, by name and labels."""

    def __init__(self, text: str) -> None:
        self.families = {f.name: f for f in text_string_to_metric_families(text)}
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float | None:
        return self._values.get((f"luce_{name}", frozenset(labels.items())))


async def scrape(server: Harness) -> Scrape:
    response = await server.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scrape(response.text)


async def settled(server: Harness, **requests: int) -> Scrape:
    """A scrape after this many requests have been counted."""
    await server.idle()
    async with asyncio.timeout(60):
        while True:
            found = await scrape(server)
            ended = sum(
                sample.value
                for name in ("luce_request_success", "luce_request_failure")
                for sample in found.families[name].samples
            )
            if ended == requests["requests"]:
                return found
            await asyncio.sleep(0.01)


async def test_every_metric_of_the_table_is_there_for_both_models() -> None:
    async with Harness(FakeScript(), FakeScript()) as server:
        found = await scrape(server)
    for spec in m.table():
        assert spec.name.removesuffix("_total") in found.families, spec.name
    for name in ("requests_running", "model_slots", "kv_cache_usage_ratio", "prompt_tokens_total"):
        assert found.get(name, model="big") is not None, name
        assert found.get(name, model="small") is not None, name
    assert found.get("time_to_first_token_seconds_count", model="small") == 0
    assert found.get("resident", model="big", device="cpu:0", state="ready") == 1


async def test_a_served_request_is_in_every_histogram_once() -> None:
    async with Harness(FakeScript(token_delay_s=0.02, hold_after=1)) as server:
        began_s = time.monotonic()
        asked = asyncio.create_task(server.ask("hello"))
        # There is time between tokens only if they come at two times.
        await eventually(lambda: server.models[0].handle.num_decoding == 1)
        server.models[0].worker.release()
        await asked
        found = await settled(server, requests=1)
        took_s = time.monotonic() - began_s
    assert found.get("request_success_total", model="big", finished_reason="stop") == 1
    for spec in m.table():
        if spec.kind == "histogram":
            assert found.get(f"{spec.name.removeprefix('luce_')}_count", model="big") == 1, (
                spec.name
            )
    assert found.get("request_prompt_tokens_sum", model="big") == 5
    assert found.get("request_generation_tokens_sum", model="big") == 6
    ttft = found.get("time_to_first_token_seconds_sum", model="big")
    e2e = found.get("e2e_request_latency_seconds_sum", model="big")
    queue = found.get("request_queue_time_seconds_sum", model="big")
    prefill = found.get("request_prefill_time_seconds_sum", model="big")
    decode = found.get("request_decode_time_seconds_sum", model="big")
    assert None not in (ttft, e2e, queue, prefill, decode)
    assert ttft == pytest.approx(queue + prefill)
    assert 0.02 <= ttft < ttft + decode <= e2e < took_s
    assert found.get("route_decisions_total", **route("big", "big", "preferred")) == 1


def route(first: str, to: str, reason: str) -> dict[str, str]:
    return {"from": first, "to": to, "reason": reason}


@pytest.mark.parametrize(
    ("primary", "reason"),
    [
        (FakeScript(refuse_next=1), "busy"),
        (FakeScript(refuse_next=1, refuse_reason="never_fits"), "too_long"),
        (FakeScript(max_ctx=4), "too_long"),
        (FakeScript(refuse_next=1, refuse_reason="draining"), "draining"),
    ],
)
async def test_why_another_model_served(primary: FakeScript, reason: str) -> None:
    async with Harness(primary, FakeScript()) as server:
        assert (await server.ask("hello")).json()["model"] == "small"
        found = await settled(server, requests=1)
    assert found.get("route_decisions_total", **route("big", "small", reason)) == 1
    assert found.get("request_success_total", model="small", finished_reason="stop") == 1


async def test_a_primary_without_a_free_slot_is_busy() -> None:
    held = FakeScript(hold_after=0, max_concurrency=1)
    async with Harness(held, FakeScript()) as server:
        first = asyncio.create_task(server.ask("one"))
        await eventually(lambda: server.models[0].worker.in_flight == 1)
        assert (await server.ask("two")).json()["model"] == "small"
        server.models[0].worker.release()
        await first
        found = await settled(server, requests=2)
    assert found.get("route_decisions_total", **route("big", "small", "busy")) == 1
    assert found.get("route_decisions_total", **route("big", "big", "preferred")) == 1


async def test_a_dead_primary_is_passed_over_and_its_return_a_restart() -> None:
    async with Harness(FakeScript(), FakeScript()) as server:
        model = server.models[0]
        model.handle.stats = WorkerStats(running=1, total_blocks=4, preempted=1, steps=9)
        model.worker.crash()
        await eventually(lambda: model.handle.state.value == "lost")
        assert (await server.ask("x")).json()["model"] == "small"
        found = await settled(server, requests=1)
        assert found.get("route_decisions_total", **route("big", "small", "restarting")) == 1
        assert found.get("resident", model="big", device="cpu:0", state="restarting") == 1
        assert found.get("kv_cache_usage_ratio", model="big") is None
        assert found.get("requests_suspended", model="big") is None
        assert found.get("engine_steps_total", model="big") == 9
        assert found.get("worker_restarts_total", model="big") == 0
        await server.connect(model)
        await server.ready()
        found = await scrape(server)
        assert found.get("worker_restarts_total", model="big") == 1
        assert found.get("engine_steps_total", model="big") == 0
        assert found.get("requests_suspended", model="big") == 0


async def test_refused_requests_say_why() -> None:
    held = FakeScript(hold_after=0, max_concurrency=1)
    async with Harness(held, rules=Rules(queue_limit=1, queue_timeout_s=0.2)) as server:
        first = asyncio.create_task(server.ask("one"))
        await eventually(lambda: server.models[0].worker.in_flight == 1)
        assert (await server.ask("two")).status_code == 503
        server.generator._admissions.queue_timeout_s = None
        third = asyncio.create_task(server.ask("three"))
        await eventually(lambda: server.router.num_waiting == 1)
        assert (await server.ask("four")).status_code == 503
        assert (await server.ask("five", temperature=-1)).status_code == 400
        answers = await server.let_go(first, third)
        assert [answer.status_code for answer in answers] == [200, 200]
        found = await settled(server, requests=5)
        assert found.get("queue_rejected_total", reason="full") == 1
        assert found.get("queue_rejected_total", reason="timeout") == 1
        assert found.get("request_failure_total", model="", reason="overloaded") == 2
        assert found.get("request_failure_total", model="", reason="invalid_request_error") == 1
        server.router.shut_down()
        await server.ask("too late")
        found = await settled(server, requests=6)
        assert found.get("queue_rejected_total", reason="shutting_down") == 1


async def test_a_client_that_leaves_is_no_success() -> None:
    async with Harness(FakeScript(hold_after=1)) as server:
        ask = asyncio.create_task(server.client.post(CHAT, json=chat_body("x", stream=True)))
        await eventually(lambda: server.models[0].handle.num_decoding == 1)
        ask.cancel()
        await asyncio.gather(ask, return_exceptions=True)
        found = await settled(server, requests=1)
    assert found.get("request_failure_total", model="big", reason="client_gone") == 1
    assert found.get("time_to_first_token_seconds_count", model="big") == 1
    assert found.get("e2e_request_latency_seconds_count", model="big") == 0


async def test_gauges_follow_the_requests() -> None:
    held = FakeScript(hold_after=1, max_concurrency=1)
    async with Harness(held) as server:
        first = asyncio.create_task(server.ask("one"))
        await eventually(lambda: server.models[0].handle.num_decoding == 1)
        second = asyncio.create_task(server.ask("two"))
        await eventually(lambda: server.router.num_waiting == 1)
        found = await scrape(server)
        for name in ("requests_running", "requests_decoding", "model_slots_reserved"):
            assert found.get(name, model="big") == 1, name
        assert found.get("requests_waiting") == 1
        assert found.get("model_slots", model="big") == 1
        server.models[0].worker.release()
        await first
        await eventually(lambda: len(server.models[0].submits()) == 2)
        server.models[0].worker.release()
        await second
        found = await settled(server, requests=2)
        for name in ("requests_running", "requests_decoding", "model_slots_reserved"):
            assert found.get(name, model="big") == 0, name
        assert found.get("requests_waiting") == 0


async def test_what_the_worker_says_of_itself() -> None:
    stats = WorkerStats(
        total_blocks=100,
        free_blocks=50,
        cached_blocks=30,
        preempted=1,
        steps=7,
        prompt_tokens=900,
        generated_tokens=70,
        prefix_query_tokens=800,
        prefix_hit_tokens=300,
        used_checkpoints=5,
        total_checkpoints=9,
        restored_checkpoints=12,
        preemptions=4,
        rss_bytes=12345,
        num_experts=2,
        expert_loads=struct.pack("<4q", 3, 1, 0, 0),
    )
    expected: dict[str, Any] = {
        "kv_cache_usage_ratio": pytest.approx(0.2),
        "requests_suspended": 1,
        "engine_steps_total": 7,
        "prompt_tokens_total": 900,
        "generation_tokens_total": 70,
        "prefix_cache_queries_total": 800,
        "prefix_cache_hits_total": 300,
        "state_checkpoints": 5,
        "state_checkpoints_restored_total": 12,
        "preemptions_total": 4,
        "worker_resident_bytes": 12345,
        "expert_tokens_total": 4,
    }
    async with Harness(FakeScript(kv_pool_tokens=1600)) as server:
        server.models[0].handle.stats = stats
        found = await scrape(server)
    for name, value in expected.items():
        assert found.get(name, model="big") == value, name
    assert found.get("kv_cache_tokens", model="big") == 1600
    assert found.get("expert_imbalance_ratio", model="big", layer="0") == 1.5
    assert found.get("expert_imbalance_ratio", model="big", layer="1") is None
    assert found.get("experts_unused", model="big", layer="0") == 0
    assert found.get("experts_unused", model="big", layer="1") == 2
    assert found.get("device_bytes", model="big", device="cpu:0", kind="weights") == 100
    resident = found.get("process_resident_bytes")
    assert resident is not None
    assert resident > 10 * 2**20
