"""`/props`: what was resolved, nothing made up."""

from __future__ import annotations

from typing import Any

import pytest
from http_harness import ByteText, Harness, eventually

from luce import __version__
from luce.protocol.messages import WorkerStats
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


async def props(server: Harness) -> Any:
    response = await server.client.get("/props")
    assert response.status_code == 200
    return response.json()


async def test_one_model() -> None:
    text = ByteText(generation_defaults={"temperature": 0.6, "top_k": 20})
    script = FakeScript(max_ctx=512, kv_pool_tokens=1024, max_concurrency=2)
    async with Harness(script, texts=(text,)) as server:
        body = await props(server)
    assert body["default_generation_settings"] == {
        "n_ctx": 512,
        "temperature": 0.6,
        "top_p": 1.0,
        "top_k": 20,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
    }
    assert (body["model_alias"], body["model_path"]) == ("big", "fake.gguf")
    assert body["server"] == {"name": "luce", "version": __version__, "props_schema": 2}
    assert body["model"] == {"arch": "fake", "draft_path": None, "tokenizer_id": None}
    runtime = body["runtime"]
    assert (runtime["backend"], runtime["dtype"], runtime["chunk"]) == ("cpu", "float32", 512)
    assert runtime["continuous_batching"]["max_concurrency"] == 2
    assert body["speculative_mode"] == "off"
    assert body["daemon"] == {"alive": True}
    assert "models" not in body
    assert "routing" not in body


async def test_capabilities_are_what_the_chat_endpoint_takes() -> None:
    async with Harness() as server:
        capabilities = (await props(server))["sampling"]["capabilities"]
        assert capabilities["seed"] is True
        assert capabilities["logprobs"] is False
        refused = await server.ask("x", logprobs=True)
        assert refused.json()["error"]["code"] == "unsupported_feature"


async def test_every_endpoint_listed_exists() -> None:
    async with Harness() as server:
        endpoints = (await props(server))["api"]["endpoints"]
        assert "/status/json" in endpoints
        assert "/v1/chat/completions" in endpoints
        kept = (await server.client.post("/v1/responses", json={"input": "hi"})).json()["id"]
        for path in endpoints:
            path = path.replace("{name:path}", "big").replace("{response_id}", kept)
            response = await server.client.get(path)
            assert response.status_code in (200, 405), path


async def test_memory_and_prefix_cache_come_from_the_worker() -> None:
    async with Harness(FakeScript(kv_pool_tokens=1600, block_tokens=16)) as server:
        server.models[0].handle.stats = WorkerStats(
            total_blocks=100,
            free_blocks=50,
            cached_blocks=30,
            prefix_query_tokens=900,
            prefix_hit_tokens=300,
            rss_bytes=12345,
        )
        body = await props(server)
    memory = body["memory"]
    assert memory["cache"]["capacity_tokens"] == 1600
    assert memory["cache"]["live_tokens"] == 20 * 16
    assert memory["cache"]["kv_bytes"] == 1600
    assert memory["weights_bytes"] == 100
    assert memory["worker"] == {"rss_bytes": 12345}
    assert 10 * 2**20 < memory["process"]["rss_bytes"] <= memory["process"]["peak_rss_bytes"]
    assert body["prefix_cache"] == {
        "unit": "tokens",
        "capacity": 1600,
        "in_use": 480,
        "lifetime_queries": 900,
        "lifetime_hits": 300,
    }


async def test_several_models_have_the_primary_on_top_and_a_list() -> None:
    async with Harness(FakeScript(max_ctx=512), FakeScript(max_ctx=1024)) as server:
        body = await props(server)
    assert body["model_alias"] == "big"
    assert (body["routing"], body["waiting"], body["queue_limit"]) == ("primary-first", 0, 8)
    assert [model["id"] for model in body["models"]] == ["big", "small"]
    settings = [model["props"]["default_generation_settings"] for model in body["models"]]
    assert [setting["n_ctx"] for setting in settings] == [512, 1024]


async def test_what_is_not_known_yet_is_null() -> None:
    async with Harness(FakeScript(load_s=0.3), wait_ready=False) as server:
        body = await props(server)
        assert body["model"]["arch"] is None
        assert body["memory"]["cache"] is None
        assert body["memory"]["weights_bytes"] is None
        assert body["memory"]["worker"] == {"rss_bytes": None}
        assert body["daemon"] == {"alive": False}
        await server.ready()


async def test_a_dead_worker_has_no_memory() -> None:
    async with Harness() as server:
        (model,) = server.models
        model.handle.stats = WorkerStats(rss_bytes=12345)
        model.worker.crash()
        await eventually(lambda: model.handle.state.value == "lost")
        assert (await props(server))["memory"]["worker"] == {"rss_bytes": None}
