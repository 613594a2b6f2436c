"""Every option of residency on a real command line, with a server process and scripted workers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from server_process import SERVE_FAKE, ServerProcess, chat_body

from luce.testing.tiny_models import tiny_llama

pytestmark = pytest.mark.anyio


def held(go_on: Path) -> dict[str, Any]:
    """A worker whose answers go on once the file is there."""
    return {"reply": [97] * 300, "hold_after": 5, "hold_until_file": str(go_on)}


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def serving(*args: Any, **options: Any) -> ServerProcess:
    """Models `a` and `b` under a command line; see `command`."""
    return ServerProcess(command(*args, **options))


def command(model: Path, flags: str, device: str = "cpu:0", **scripts: dict[str, Any]) -> list[str]:
    """Starts a server of models `a` and `b`."""
    words = f"--model-routing name {flags} --port 0".split()
    for name in ("a", "b"):
        words += ["--model", str(model), "--model-name", name, "--target-device", device]
    setup = {
        "words": words,
        "models": [{"name": name, "script": scripts.get(name, {})} for name in ("a", "b")],
        "script": {"vocab_size": 1000},
    }
    return [sys.executable, str(SERVE_FAKE), json.dumps(setup)]


async def ask(server: ServerProcess, model: str | None) -> tuple[int, str]:
    """Status, and who answered or the error's code."""
    answer = await server.ask(model=model)
    body = answer.json()
    return answer.status_code, body["model"] if "model" in body else body["error"]["code"]


async def host_plan(server: ServerProcess, model: str) -> dict[str, int]:
    """What a model was planned to take on the host."""
    parts: dict[str, int] = (await server.model_status(model))["plan"]["host"]
    return parts


def asking(server: ServerProcess, model: str) -> asyncio.Task[Any]:
    return asyncio.create_task(server.ask(model=model))


def finish_of(body: Any) -> str:
    reason: str = body["choices"][0]["finish_reason"]
    return reason


async def test_keep_weights_host_mib_and_unknown_model(tiny_path: Path) -> None:
    flags = "--swap-residency --swap-keep-weights a --swap-host-mib 0 --unknown-model primary"
    async with serving(tiny_path, flags) as server:
        assert await ask(server, "nobody") == (200, "a")
        assert await ask(server, "b") == (200, "b")
        kept = await server.model_status("a")
        assert (kept["residency"], kept["weights_resident"]) == ("evicted", True)
        assert (kept["retained_devices"], kept["retained_bytes"]) == (["cpu:0"], 100)
        assert kept["plan"]["cpu:0"]["weights"] > 0
        assert await ask(server, "nobody") == (200, "a")
        dropped = await server.model_status("b")
        assert (dropped["weights_resident"], dropped["host_weight_bytes"]) == (False, 0)


@pytest.mark.parametrize("max_wait", [0, 1])
async def test_min_residency_and_max_wait(tiny_path: Path, tmp_path: Path, max_wait: int) -> None:
    flags = f"--swap-residency --swap-min-residency-ms 600000 --swap-max-wait-ms {max_wait}"
    go_on = tmp_path / "go on"
    async with serving(tiny_path, flags, a=held(go_on)) as server:
        long = asking(server, "a")
        await server.until(lambda s: s["models"][0]["status"]["active_requests"] == 1)
        other = asking(server, "b")
        await server.until(lambda s: s["models"][1]["waiting_for_residency"] == 1)
        verdicts = {
            0: ("wait", "a has only just come in"),
            1: ("make_room", "b shares devices with them"),
        }

        def is_decided(status: Any) -> bool:
            last = status["decisions"][-1:]
            return [(each["verdict"], each["reason"]) for each in last] == [verdicts[max_wait]]

        await server.until(is_decided)
        assert (await server.model_status("a"))["draining"] == bool(max_wait)
        go_on.touch()
        assert finish_of((await long).json()) == "stop"
        assert (await other).json()["model"] == "b"  # An idle model goes at once in any case.


async def test_a_drain_timeout_gives_up_the_swap_and_not_the_answer(
    tiny_path: Path, tmp_path: Path
) -> None:
    flags = "--swap-residency --swap-min-residency-ms 0 --swap-drain-timeout-s 1"
    go_on = tmp_path / "go on"
    async with serving(tiny_path, flags, a=held(go_on)) as server:
        long = asking(server, "a")
        await server.until(lambda s: s["models"][0]["status"]["active_requests"] == 1)
        assert await ask(server, "b") == (503, "swap_drain_timeout")
        assert not long.done()
        go_on.touch()
        assert finish_of((await long).json()) == "stop"
        await server.idle()
        assert await ask(server, "b") == (200, "b")


async def test_models_max_and_idle_unload(tiny_path: Path) -> None:
    flags = "--load-on-demand --models-max 1 --idle-unload-s 1"
    async with serving(tiny_path, flags) as server:
        example = next(line for line in server.output if "messages" in line)
        body = json.loads(example.strip().removeprefix("-d ").strip("'"))
        assert (await server.client.post("/v1/chat/completions", json=body)).status_code == 200
        assert await ask(server, "b") == (200, "b")
        assert (await server.model_status("a"))["residency"] == "evicted"
        await server.until(lambda s: s["models"][1]["residency"] == "evicted")
        asleep = await server.model_status("b")
        assert asleep["last_swap_reason"] == "idle"
        assert await ask(server, "b") == (200, "b")
        # Before it is idle again: its plan, the books and what the system says of its process.
        while (status := await server.status())["models"][1]["residency"] != "resident":
            assert await ask(server, "b") == (200, "b")
        (books,) = status["devices"]
        planned = sum(sum(parts.values()) for parts in asleep["plan"].values())
        assert books["planned_bytes"]["b"] == books["held_bytes"]["b"] == planned
        assert books["held_bytes"]["a"] == sum((await host_plan(server, "a")).values())
        assert set(books["seen_bytes"]) == {"a", "b"}
        assert min(books["seen_bytes"].values()) > 2**20


@pytest.mark.parametrize("policy", ["gate", "proceed"])
async def test_admission_policy(tiny_path: Path, tmp_path: Path, policy: str) -> None:
    """Another program has nearly all of the device."""
    inventory = tmp_path / "devices.toml"
    inventory.write_text(
        "[[device]]\nid = 'cuda:0'\ntotal_mib = 8000\nfree_mib = 100\n", encoding="ascii"
    )
    flags = f"--load-on-demand --device-inventory {inventory} --admission-policy {policy}"
    async with serving(tiny_path, flags, device="cuda:0") as server:
        expected = (200, "a") if policy == "proceed" else (503, "insufficient_device_memory")
        assert await ask(server, "a") == expected
        (books,) = (await server.status())["devices"]
        assert books["external_bytes"] == 7900 * 2**20 - books["visible_bytes"]


@pytest.mark.parametrize("policy", ["gate", "proceed"])
async def test_a_device_that_says_nothing_of_its_memory(
    tiny_path: Path, tmp_path: Path, policy: str
) -> None:
    """Nobody can plan its models: each of them would have it for itself."""
    inventory = tmp_path / "devices.toml"
    inventory.write_text("[[device]]\nid = 'cuda:0'\n", encoding="ascii")
    flags = f"--load-on-demand --device-inventory {inventory} --admission-policy {policy}"
    async with serving(tiny_path, flags, device="cuda:0") as server:
        if policy == "gate":
            assert await ask(server, "a") == (503, "insufficient_device_memory")
            last = (await server.status())["decisions"][-1]
            assert last["reason"].startswith("cuda:0: all needed, unknown available")
            assert last["available"] == {"cuda:0": None}
        else:
            for name in ("a", "b", "a"):
                assert await ask(server, name) == (200, name)
                models = (await server.status())["models"]
                assert [m["id"] for m in models if m["residency"] == "resident"] == [name]


def test_a_preload_that_is_refused_says_why(tiny_path: Path, tmp_path: Path) -> None:
    inventory = tmp_path / "devices.toml"
    inventory.write_text("[[device]]\nid = 'cuda:0'\n", encoding="ascii")
    flags = f"--load-on-demand --device-inventory {inventory} --preload a"
    words = command(tiny_path, flags, device="cuda:0")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 6
    assert "--preload a: cuda:0: all needed, unknown available" in done.stderr


async def test_preload_and_pin(tiny_path: Path) -> None:
    async with serving(tiny_path, "--load-on-demand --models-max 1 --preload b --pin b") as server:
        assert (await server.model_status("b"))["residency"] == "resident"
        assert await ask(server, "a") == (503, "insufficient_device_memory")
        answer = await server.client.post("/v1/chat/completions", json=chat_body())
        assert answer.json()["model"] == "b"
