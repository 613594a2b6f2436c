"""Bug log, areas swap and memory: B61, B63, B65."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from case_client import minimal
from http_harness import CHAT
from server_process import ServerProcess

pytestmark = pytest.mark.anyio

NUM_RACES = 50
NUM_SWAPS = 20
SLACK_BYTES = 8 * 2**20


def swapping(model: Path, *names: str) -> ServerProcess:
    """Several models that share one device, of which one is resident at a time."""
    words = ["-m", "luce", "serve", "--model-routing", "name", "--swap-residency", "--port", "0"]
    for name in names:
        words += ["--model", str(model), "--model-name", name, "--target-device", "cpu:0"]
    return ServerProcess([sys.executable, *words])


async def ask(server: ServerProcess, model: str, **fields: Any) -> str:
    """The model that answered; fails unless it is the one that was named."""
    body = minimal(CHAT, model=model, max_tokens=4, temperature=0, **fields)
    answer = await asyncio.wait_for(server.client.post(CHAT, json=body), 60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


async def loads(server: ServerProcess) -> int:
    return sum(model["swaps_in"] for model in (await server.status())["models"])


async def watching(server: ServerProcess, work: Callable[[], Awaitable[Any]]) -> None:
    """Do some work while nobody ever sees two models resident."""
    task = asyncio.ensure_future(work())
    while not task.done():
        models = (await server.status())["models"]
        assert sum(model["residency"] == "resident" for model in models) <= 1
        await asyncio.sleep(0.02)
    await task


def rss(model: Any) -> int:
    """Host memory of a model's process, as of its last report."""
    found: int | None = model["props"]["memory"]["worker"]["rss_bytes"]
    return found or 0


async def test_case_b61_two_absent_models_at_once(tiny_path: Path) -> None:
    async with swapping(tiny_path, "a", "b", "c") as server:
        rng = random.Random(61)
        for _ in range(NUM_RACES):
            await ask(server, "a")

            async def late(name: str, jitter_s: float) -> None:
                await asyncio.sleep(jitter_s)
                await ask(server, name)

            pair = [late(name, rng.uniform(0, 0.05)) for name in ("b", "c")]
            await watching(server, lambda pair=pair: asyncio.gather(*pair))  # type: ignore[misc]
        before = await loads(server)
        await ask(server, "a")
        await asyncio.gather(*(ask(server, "b") for _ in range(10)))
        assert await loads(server) <= before + 2
        await server.idle()


async def test_case_b63_alternating_requests_do_not_thrash(tiny_path: Path) -> None:
    async with swapping(tiny_path, "a", "b") as server:
        before = await loads(server)

        async def client(name: str) -> None:
            for _ in range(5):
                await ask(server, name)

        # Two of each: a model has work as long as it is there, however late clients ask again.
        await watching(server, lambda: asyncio.gather(*(client(name) for name in "abab")))
        assert await loads(server) - before <= 14
        await server.idle()


async def test_case_b65_memory_comes_back(tiny_path: Path) -> None:
    async with swapping(tiny_path, "a", "b") as server:
        resident, texts = [], []
        for _ in range(NUM_SWAPS):
            texts.append(await ask(server, "a"))
            await ask(server, "b")
            models = (await server.status())["models"]
            resident.append(sum(rss(model) for model in models))
        assert len(set(texts)) == 1
        # The first swaps take what is then kept, and reports of it come a little later.
        assert abs(resident[-1] - resident[4]) < SLACK_BYTES
