"""KV tensors: geometry, zeros, and memory that is only taken when used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from luce.engine.kv_tensors import KVTensors
from luce.kv.spec import KVSpec

CPU = torch.device("cpu")


def spec(element_bytes: int = 4) -> KVSpec:
    return KVSpec(
        kind="full",
        num_layers=3,
        block_tokens=16,
        num_kv_heads=2,
        head_dim=8,
        element_bytes=element_bytes,
    )


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_geometry(dtype: torch.dtype) -> None:
    kv = KVTensors(spec(dtype.itemsize), 5, dtype, CPU)
    assert len(kv.layers) == 3
    for layer in kv.layers:
        assert layer.shape == (5, 16, 2, 2, 8)
        assert layer.dtype == dtype
        assert layer.is_contiguous()
        assert not layer.any()
    assert kv.nbytes == 5 * spec(dtype.itemsize).bytes_per_block


def test_layers_do_not_share_memory() -> None:
    kv = KVTensors(spec(), 4, torch.float32, CPU)
    kv.layers[1].fill_(1.0)
    assert not kv.layers[0].any()
    assert not kv.layers[2].any()


def test_type_and_spec_must_agree() -> None:
    with pytest.raises(AssertionError):
        KVTensors(spec(2), 4, torch.float32, CPU)


@pytest.mark.skipif("MALLOC_PERTURB_" in os.environ, reason="fills memory as it is taken")
def test_memory_is_committed_as_it_is_used() -> None:
    gibibyte = 1 << 30
    before = resident_bytes()
    kv = KVTensors(spec(), gibibyte // spec().bytes_per_block, torch.float32, CPU)
    assert kv.nbytes > 0.99 * gibibyte
    assert resident_bytes() - before < 50 << 20
    kv.layers[0][:4] = 1.0
    assert resident_bytes() - before < 60 << 20
