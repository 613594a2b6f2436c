"""Context, pool and memory resolved from options and a model's geometry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from luce.engine.device import open_device
from luce.engine.models.registry import family_of
from luce.engine.options import EngineOptions
from luce.engine.sizing import size_engine
from luce.errors import ModelFileError, PlacementError, UsageError
from luce.loaders.checkpoint import Checkpoint, TensorMeta
from luce.sizing.model_sizes import Sizing
from luce.sizing.steps import scratch_bytes
from luce.sizing.weights import decoded_bytes
from luce.testing.headers import SMALL

GIB = 1 << 30
HPARAMS = SMALL
# 2 (keys, values) * 2 layers * 2 heads * 16 * 4 bytes
TOKEN_BYTES = 512


class Tensors:
    """A source of one matrix and one vector that nobody reads."""

    metas = (TensorMeta("a", "Q8_0", (1000, 64), 68000), TensorMeta("b", "F32", (64,), 256))

    def names(self) -> Iterator[str]:
        return (meta.name for meta in self.metas)

    def meta(self, name: str) -> TensorMeta:
        return next(meta for meta in self.metas if meta.name == name)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        raise AssertionError(f"{name} was read")


def checkpoint(**hparams: object) -> Checkpoint:
    return Checkpoint(
        container="gguf",
        architecture="llama",
        name="x",
        hparams=replace(HPARAMS, **hparams),  # type: ignore[arg-type]
        tensors=Tensors(),
        file_bytes=1,
    )


def size(free: int = 4 * GIB, model: Checkpoint | None = None, **options: object) -> Sizing:
    model = model or checkpoint()
    spec = family_of("llama").kv_spec(model.hparams, 16, 4)
    wanted = EngineOptions(path=Path("x"), **options)  # type: ignore[arg-type]
    return size_engine(wanted, model, spec, torch.float32, open_device("cpu"), free)


def test_defaults() -> None:
    found = size()
    assert found.max_ctx == 4096
    assert found.num_blocks == 4 * 4096 // 16
    assert found.kv_bytes == (found.num_blocks + 1) * 16 * TOKEN_BYTES
    assert size(model=checkpoint(context_length=1 << 17)).max_ctx == 8192


def test_options() -> None:
    assert size(max_ctx=100).max_ctx == 100
    assert size(max_ctx=100, max_concurrency=3).num_blocks == -(-300 // 16)
    assert size(kv_pool_tokens=5000).num_blocks == -(-5000 // 16)
    assert size(max_ctx=4096).max_ctx == 4096


def test_context_longer_than_the_models() -> None:
    with pytest.raises(UsageError, match=r"--max-ctx 4097 is longer .* 4096 tokens"):
        size(max_ctx=4097)


def test_a_sequence_is_no_longer_than_the_pool() -> None:
    assert size(kv_pool_tokens=256).max_ctx == 256
    assert size(kv_pool_tokens=250).max_ctx == 256
    assert size(kv_pool_tokens=250, max_ctx=100).max_ctx == 100


def test_pool_smaller_than_a_block() -> None:
    with pytest.raises(UsageError, match=r"--kv-pool-tokens 15 is too small.* need 16"):
        size(kv_pool_tokens=15)


@pytest.mark.parametrize("options", [{"max_ctx": 1}, {"kv_pool_tokens": 1, "block_tokens": 1}])
def test_options_without_room_for_an_answer(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"is too s.* need 2"):
        size(**options)


def test_a_model_without_room_for_an_answer() -> None:
    options = EngineOptions(path=Path("short.gguf"))
    short = checkpoint(context_length=1)
    spec = family_of("llama").kv_spec(short.hparams, options.block_tokens, 4)
    with pytest.raises(ModelFileError, match=r"short\.gguf: its context length is 1;"):
        size_engine(options, short, spec, torch.float32, open_device("cpu"), GIB)


def test_default_pool_takes_a_quarter_of_what_is_free() -> None:
    weights = decoded_bytes(checkpoint(), 4, packed=True)
    fixed = weights + scratch_bytes(HPARAMS, 512, 4, 4)
    free = fixed + 4 * 1000 * 16 * TOKEN_BYTES
    assert size(free, cpu_exact=True).num_blocks == 1000
    # But one whole sequence always has to fit.
    tight = size(fixed + 500 * 16 * TOKEN_BYTES, cpu_exact=True)
    assert tight.num_blocks == 4096 // 16


def test_not_enough_memory_says_what_is_needed_and_free() -> None:
    with pytest.raises(PlacementError, match=r"cpu:0: .* needed, 1\.0 MiB free") as caught:
        size(1 << 20)
    for part in ("weights", "KV cache", "scratch", "--max-ctx"):
        assert part in str(caught.value)
    with pytest.raises(PlacementError):
        size(GIB, kv_pool_tokens=GIB // TOKEN_BYTES)


def test_scratch_holds_a_gather_of_one_layer() -> None:
    small, large = size(kv_pool_tokens=1600), size(kv_pool_tokens=3200)
    assert large.scratch_bytes - small.scratch_bytes == 1600 * TOKEN_BYTES // 2
