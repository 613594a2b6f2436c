"""What can be seen from outside: models, health, liveness, while loading and after a death."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from http_harness import Harness, Rules, eventually

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


async def test_models_are_listed_by_priority() -> None:
    async with Harness(FakeScript(max_ctx=512), FakeScript(max_ctx=1024)) as server:
        listed = (await server.client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert listed["data"][0] == {
            "id": "big",
            "created": 1_700_000_000,
            "context_length": 512,
            "max_context_length": 8192,
            "state": "ready",
            "object": "model",
            "owned_by": "luce",
        }
        assert [model["id"] for model in listed["data"]] == ["big", "small"]
        one = (await server.client.get("/v1/models/small")).json()
        assert one == listed["data"][1]


async def test_codex_gets_the_list_in_its_own_form() -> None:
    async with Harness(FakeScript(max_ctx=512), FakeScript(max_ctx=1024)) as server:
        listed = (await server.client.get("/v1/models?client_version=0.171.0")).json()
        assert list(listed) == ["models"]
        assert [(m["slug"], m["priority"]) for m in listed["models"]] == [("big", 1), ("small", 2)]
        first = listed["models"][0]
        efforts = [level["effort"] for level in first.pop("supported_reasoning_levels")]
        assert efforts == ["none", "low", "medium", "high", "xhigh"]
        assert first == {
            "slug": "big",
            "display_name": "big",
            "description": "Served by luce",
            "default_reasoning_level": "low",
            "shell_type": "shell_command",
            "visibility": "list",
            "supported_in_api": True,
            "priority": 1,
            "context_window": 512,
            "supports_reasoning_summaries": False,
            "supports_parallel_tool_calls": False,
        }


async def test_root_and_head() -> None:
    async with Harness() as server:
        root = await server.client.get("/")
        assert root.json()["status"] == "ok"
        for path in ("/", "/health", "/v1/models"):
            head = await server.client.head(path)
            assert (head.status_code, head.content) == (200, b"")


async def test_loading_then_ready(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    async with Harness(FakeScript(load_until_file=str(loaded)), wait_ready=False) as server:
        health = await server.client.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "loading"
        assert int(health.headers["retry-after"]) >= 1
        assert (await server.client.get("/health/live")).status_code == 200
        assert (await server.client.get("/health?live")).json() == {"status": "alive"}
        models = (await server.client.get("/v1/models")).json()["data"]
        assert [model["state"] for model in models] == ["loading"]
        refused = await server.ask("too early")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "model_loading"
        assert int(refused.headers["retry-after"]) >= 1
        loaded.touch()
        await server.ready()
        health = await server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        assert (await server.ask("now")).status_code == 200


async def test_dead_worker_and_its_return() -> None:
    async with Harness() as server:
        model = server.models[0]
        model.worker.crash()
        await eventually(lambda: model.handle.state.value == "lost")
        health = await server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "restarting")
        assert (await server.client.get("/health/live")).status_code == 200
        patient = asyncio.create_task(server.ask("nobody there yet"))
        await eventually(lambda: server.router.num_waiting == 1)
        await server.connect(model)
        await server.ready()
        assert (await patient).status_code == 200
        assert (await server.client.get("/health")).status_code == 200
        assert (await server.ask("again")).status_code == 200
        await server.idle()


async def test_one_of_two_models_is_enough_for_health() -> None:
    async with Harness(FakeScript(), FakeScript()) as server:
        server.models[0].worker.crash()
        await eventually(lambda: server.models[0].handle.state.value == "lost")
        health = (await server.client.get("/health")).json()
        assert health["status"] == "ok"
        assert [model["state"] for model in health["models"]] == ["restarting", "ready"]
        assert (await server.ask("hi")).json()["model"] == "small"


async def test_health_is_quick_and_good_under_full_load() -> None:
    script = FakeScript(hold_after=1, max_concurrency=2)
    async with Harness(script, rules=Rules(queue_limit=4)) as server:
        asks = [asyncio.create_task(server.ask("x", max_tokens=2)) for _ in range(6)]
        await eventually(lambda: server.router.num_waiting == 4)
        for _ in range(20):
            health = await server.client.get("/health")
            assert (health.status_code, health.json()["status"]) == (200, "ok")
        assert not any(ask.done() for ask in asks)
        assert {answer.status_code for answer in await server.let_go(*asks)} == {200}
        await server.idle()
