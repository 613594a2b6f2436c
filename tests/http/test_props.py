"""`/props`: what was resolved, nothing made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from http_harness import CHAT, ByteText, Harness, chat_body, eventually
from scripted_text import tagged_text, writing

from luce import __version__
from luce.protocol.messages import LayerMemory, WorkerStats
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

F = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"name": "n", "schema": {"type": "object", "properties": {}}}
FORMATS: dict[str, dict[str, Any]] = {
    "text": {"response_format": {"type": "text"}},
    "json_object": {"response_format": {"type": "json_object"}},
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    "grammar": {"grammar": "start: /a+/"},
    "regex": {"regex": "a+"},
}
CHOICES: dict[str, Any] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "named": F,
    "allowed_tools": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [F]},
    },
}
MOST = {"logprobs": True, "top_logprobs": 20}
IN_RESPONSES = {"include": ["message.output_text.logprobs"], "top_logprobs": 20}
LOGPROBS: dict[str, dict[str, Any]] = {
    CHAT: chat_body("x", **MOST),
    "/v1/completions": {"prompt": "x", "logprobs": 20},
    "/v1/responses": {"input": "x", **IN_RESPONSES},
}


async def props(server: Harness) -> Any:
    response = await server.client.get("/props")
    assert response.status_code == 200
    return response.json()


async def test_one_model() -> None:
    types = {"F8_E4M3": 1000, "BF16": 10}
    text = ByteText(generation_defaults={"temperature": 0.6, "top_k": 20}, weight_types=types)
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
    assert body["model"] == {
        "arch": "fake",
        "draft_path": None,
        "tokenizer_id": None,
        "layers": None,
        "weight_types": types,
    }
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
        assert capabilities["logprobs"] is True
        assert (await server.ask("x", logprobs=True)).status_code == 200


async def test_what_is_listed_can_be_forced() -> None:
    text = tagged_text()
    async with Harness(writing(text, "aa"), texts=(text,)) as server:
        capabilities = (await props(server))["capabilities"]
        for name in capabilities["answer_formats"]:
            answer = await server.ask("x", **FORMATS[name])
            assert answer.status_code == 200, answer.text
            forced = server.models[0].submits()[-1].sampling.grammar
            assert (forced is not None) == (name != "text"), name
        for name in capabilities["tool_choices"]:
            answer = await server.ask("x", tools=[F], tool_choice=CHOICES[name])
            assert answer.status_code == 200, answer.text
    assert capabilities["answer_formats"] == list(FORMATS)
    assert capabilities["tool_choices"] == list(CHOICES)


async def test_log_probabilities_come_from_the_endpoints_listed() -> None:
    text = tagged_text()
    async with Harness(writing(text, "aa"), texts=(text,)) as server:
        capabilities = (await props(server))["capabilities"]
        num_top = capabilities["max_top_logprobs"]
        assert num_top == 20
        for path in capabilities["logprobs_endpoints"]:
            body = LOGPROBS[path]
            answer = await server.client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert server.models[0].submits()[-1].sampling.logprobs == num_top
            name = "top_logprobs" if "top_logprobs" in body else "logprobs"
            refused = await server.client.post(path, json={**body, name: num_top + 1})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert capabilities["logprobs_endpoints"] == list(LOGPROBS)


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
            prefix_host_blocks=5,
            prefix_recalled_blocks=3,
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
        "checkpoints": None,
        "host": {"in_use": 80, "lifetime_recalled": 48},
    }


async def test_saved_states_of_a_hybrid_are_counted() -> None:
    async with Harness(FakeScript()) as server:
        server.models[0].handle.stats = WorkerStats(
            used_checkpoints=5, total_checkpoints=9, restored_checkpoints=12
        )
        body = await props(server)
    assert body["prefix_cache"]["checkpoints"] == {
        "capacity": 9,
        "in_use": 5,
        "lifetime_restored": 12,
    }


async def test_several_models_have_the_primary_on_top_and_a_list() -> None:
    async with Harness(FakeScript(max_ctx=512), FakeScript(max_ctx=1024)) as server:
        body = await props(server)
    assert body["model_alias"] == "big"
    assert (body["routing"], body["waiting"], body["queue_limit"]) == ("primary-first", 0, 8)
    assert [model["id"] for model in body["models"]] == ["big", "small"]
    settings = [model["props"]["default_generation_settings"] for model in body["models"]]
    assert [setting["n_ctx"] for setting in settings] == [512, 1024]


async def test_what_is_not_known_yet_is_null(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    async with Harness(FakeScript(load_until_file=str(loaded)), wait_ready=False) as server:
        body = await props(server)
        assert body["model"]["arch"] is None
        assert body["memory"]["cache"] is None
        assert body["memory"]["weights_bytes"] is None
        assert body["memory"]["worker"] == {"rss_bytes": None}
        assert body["daemon"] == {"alive": False}
        loaded.touch()
        await server.ready()


async def test_a_dead_worker_has_no_memory() -> None:
    async with Harness() as server:
        (model,) = server.models
        model.handle.stats = WorkerStats(rss_bytes=12345)
        model.worker.crash()
        await eventually(lambda: model.handle.state.value == "lost")
        assert (await props(server))["memory"]["worker"] == {"rss_bytes": None}


async def test_what_the_layers_keep() -> None:
    layers = LayerMemory(
        pattern="16 x (3 linear attention + 1 full attention)",
        kv_bytes_per_token=65536,
        state_bytes_per_sequence=147 << 20,
        state_bytes=10 * (147 << 20),
        num_checkpoints=5,
    )
    async with Harness(FakeScript(layers=layers)) as server:
        body = await props(server)
    assert body["model"]["layers"] == {
        "pattern": "16 x (3 linear attention + 1 full attention)",
        "kv_bytes_per_token": 65536,
        "state_bytes_per_sequence": 147 << 20,
        "state_checkpoints": 5,
    }
    assert body["memory"]["cache"]["recurrent_bytes"] == 10 * (147 << 20)
