"""What remains of a GPU's memory for the KV pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from luce.engine.device_sizing import StepMemory, fit_pool
from luce.engine.options import EngineOptions
from luce.errors import PlacementError
from luce.kv.spec import KVSpec
from luce.sizing.model_sizes import Sizing

SPEC = KVSpec("full", num_layers=2, block_tokens=16, num_kv_heads=2, head_dim=64, element_bytes=2)
STEPS = StepMemory(eager_bytes=100 << 20, graph_bytes=50 << 20)
OPTIONS = EngineOptions(path=Path("model"), device="cuda:0")
SIZING = Sizing(max_ctx=1024, num_blocks=1000, weights_bytes=0, kv_bytes=0, scratch_bytes=0)


def free_for(blocks: int) -> int:
    """Memory that holds so many blocks and the null block beside the steps."""
    return STEPS.total_bytes + (blocks + 1) * SPEC.bytes_per_block


def test_the_pool_is_what_was_estimated_where_it_fits() -> None:
    found = fit_pool(SIZING, SPEC, OPTIONS, STEPS, free_for(2000))
    assert found.num_blocks == 1000
    assert found.kv_bytes == 1001 * SPEC.bytes_per_block


def test_the_pool_shrinks_to_what_fits() -> None:
    assert fit_pool(SIZING, SPEC, OPTIONS, STEPS, free_for(700)).num_blocks == 700
    assert fit_pool(SIZING, SPEC, OPTIONS, STEPS, free_for(64)).num_blocks == 64


def test_less_than_one_sequence_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"not enough memory on cuda:0: .* free; lower"):
        fit_pool(SIZING, SPEC, OPTIONS, STEPS, free_for(63))


def test_a_pool_asked_for_is_given_or_refused() -> None:
    options = replace(OPTIONS, kv_pool_tokens=16000)
    assert fit_pool(SIZING, SPEC, options, STEPS, free_for(1000)).num_blocks == 1000
    with pytest.raises(PlacementError, match="captured steps"):
        fit_pool(SIZING, SPEC, options, STEPS, free_for(999))
