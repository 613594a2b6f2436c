"""What models know of conversations stays with them while they take turns, in real processes.

The last one is row A36 of the swap specification.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from server_process import CHAT, ServerProcess, chat_body

from luce.testing.tiny_models import tiny_llama

pytestmark = pytest.mark.anyio

LONG = "Tell me of the sea, of the wind, of ships and of those who sail them. " * 4


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


def serving(path: Path, *flags: str) -> ServerProcess:
    words = ["-m", "luce", "serve", "--model-routing", "name", "--swap-residency", "--port", "0"]
    for name in ("a", "b"):
        words += f"--model {path} --model-name {name} --target-device cpu:0".split()
        words += ["--max-ctx", "512", "--max-concurrency", "2", *flags]
    return ServerProcess([sys.executable, *words])


async def ask(server: ServerProcess, model: str, text: str = LONG) -> Any:
    body = chat_body(text, model=model, max_tokens=8, temperature=0)
    response = await asyncio.wait_for(server.client.post(CHAT, json=body), 60)
    assert response.status_code == 200, response.text
    return response.json()


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def test_a_conversation_goes_on_behind_a_swap(tiny_path: Path) -> None:
    async with serving(tiny_path) as server:
        first = await ask(server, "a")
        assert cached(first) == 0
        # Of the same file, yet another model: it finds nothing.
        assert cached(await ask(server, "b")) == 0
        again = await ask(server, "a")
        assert text_of(again) == text_of(first)
        prompt_tokens = again["usage"]["prompt_tokens"]
        assert cached(again) >= prompt_tokens - 32


async def test_without_host_memory_it_is_computed_again(tiny_path: Path) -> None:
    async with serving(tiny_path, "--prefix-snapshot-memory", "0") as server:
        first = await ask(server, "a")
        await ask(server, "b")
        again = await ask(server, "a")
        assert (cached(again), text_of(again)) == (0, text_of(first))


async def test_hidden_states_swap_their_model_in_and_seed_its_cache(tiny_path: Path) -> None:
    async with serving(tiny_path) as server:
        messages = [{"role": "user", "content": LONG}]
        body = {"model": "b", "messages": messages, "layers": [-1], "cache_prefix": True}
        response = await asyncio.wait_for(server.client.post("/v1/hidden_states", json=body), 60)
        read = response.json()
        assert (response.status_code, read["model"]) == (200, "b")
        assert len(read["layers"]["-1"]["last"]) == read["n_embd"]
        kept = read["cache_prefix"]["cached_tokens"]
        assert kept > 0
        await ask(server, "a")
        # Seeded, evicted, reinstated: the chat that begins with the prompt hits.
        answer = await ask(server, "b")
        assert cached(answer) >= kept - 16
