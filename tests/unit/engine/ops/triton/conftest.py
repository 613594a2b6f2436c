"""Kernels run on a GPU where there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    # Read when a kernel is defined, so it must stand before any kernel's module is imported.
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if HAS_GPU else "cpu")


if not HAS_GPU:
    sys.path.append(str(Path(__file__).parent))
    import interpreter

    interpreter.prepare()


@pytest.fixture
def wide_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs a product: the interpreter takes them one by one."""
    from luce.engine.ops import select
    from luce.engine.ops.quant_matmul import QuantOps
    from luce.engine.ops.triton import (
        linear,
        moe,
        moe_few,
        moe_fuse,
        moe_quant,
        quant_linear,
        quant_tilings,
    )
    from luce.engine.ops.triton.quant_embedding import quant_lookup

    monkeypatch.setattr(linear, "_BLOCK_OUT", 256)
    monkeypatch.setattr(moe, "_BLOCK_OUT", 256)
    monkeypatch.setattr(moe_quant, "_VECTOR_ELEMENTS", 2048)
    wide = quant_tilings.QuantTilings(
        vector={4: quant_tilings.VectorTiling(128, 8, 4)},
        tile={64: quant_tilings.TileTiling(128, 4, 4, 2, 1)},
        tile_tokens=(32, 32),
    )
    linears = partial(quant_linear.TritonQuantLinear, tilings=wide)
    # Fewer tokens than a prompt of the tests: both ways of a mixture are gone.
    monkeypatch.setattr(moe_few, "MOST_TOKENS", 8)
    monkeypatch.setattr(moe_fuse, "TILINGS", (moe_few.FewTiling(128, 256, 1, 16, 2),) * 2)
    ops = QuantOps(linears, quant_lookup, moe_quant.QuantExperts, moe_fuse.few_tokens)
    monkeypatch.setattr(select, "_triton_quantised", lambda: ops)


@pytest.fixture
def as_gpu(monkeypatch: pytest.MonkeyPatch, wide_programs: None) -> None:
    """Choose for a CPU what a GPU is given: Triton's operations, and nothing of the host's own."""
    from luce.engine.ops import select
    from luce.engine.ops.cpu import native_candidates

    def on_gpu(request: select.OpRequest, make: Callable[[], object]) -> list[object]:
        return [select.Candidate(select.TRITON, make(), lambda _: None)]

    monkeypatch.setattr(select, "_on_gpu", on_gpu)
    monkeypatch.setattr(native_candidates, "native_library", lambda: "not on a GPU")
