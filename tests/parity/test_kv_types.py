"""Keys and values in narrow types: the same ids however the work is laid out, logits in bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_harness import Driver, Request, all_logits, load_engine, random_ids

from luce.engine.engine import Engine
from luce.errors import UsageError
from luce.testing.tiny_models import tiny_qwen3

# Of the logits' norm, against the same model with a float32 cache.
BOUND = {"f16": 1e-3, "bf16": 8e-3, "q8_0": 1.5e-2, "q4_0": 0.25}
LENGTHS = [1, 17, 40, 75, 3, 64]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen3(tmp_path_factory.mktemp("qwen3"), container="safetensors")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Engine:
    return load_engine(folder)


def typed(folder: Path, key: str, value: str) -> Engine:
    return load_engine(folder, cache_type_k=key, cache_type_v=value)


def requests() -> list[Request]:
    return [
        Request(random_ids(length, 280, seed=length), max_tokens=16, arrival=index % 3)
        for index, length in enumerate(LENGTHS)
    ]


@pytest.mark.parametrize("kind", BOUND)
def test_logits(folder: Path, plain: Engine, kind: str) -> None:
    ids = random_ids(90, 280, seed=2)
    expected = all_logits(plain, ids, [30, 30, 30], range(1, 20))
    found = all_logits(typed(folder, kind, kind), ids, [30, 30, 30], range(1, 20))
    error = ((found - expected).norm() / expected.norm()).item()
    assert 0 < error < BOUND[kind]


@pytest.mark.parametrize(("key", "value"), [("q8_0", "q4_0"), ("q4_0", "f16"), ("auto", "q8_0")])
def test_batch_chunks_and_blocks_do_not_matter(folder: Path, key: str, value: str) -> None:
    engine = typed(folder, key, value)
    expected = [Driver(engine).run([replace(each, arrival=0)])[0] for each in requests()]
    assert Driver(engine).run(requests()) == expected
    assert Driver(engine, chunk=7, shuffle=1).run(requests()) == expected
    assert len({tuple(ids) for ids in expected}) > 3


def test_a_cache_takes_the_memory_of_its_types(folder: Path, plain: Engine) -> None:
    small = typed(folder, "q8_0", "q4_0")
    assert small.resolved.kv_pool_tokens == plain.resolved.kv_pool_tokens
    assert small.resolved.kv_bytes * 2 * 32 * 4 == plain.resolved.kv_bytes * (34 + 18)


def test_heads_that_do_not_fill_groups(tmp_path: Path) -> None:
    odd = tiny_qwen3(tmp_path, head_dim=16)
    with pytest.raises(UsageError, match=r"--cache-type-k q8_0 .* heads have 16"):
        load_engine(odd, cache_type_k="q8_0")
