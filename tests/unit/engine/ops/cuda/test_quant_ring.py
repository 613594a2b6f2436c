"""How deep a ring is."""

from __future__ import annotations

import pytest

from luce.engine.device_kernel import KernelLimits
from luce.engine.ops.cuda.quant_ring import Ring, RingTiling
from luce.engine.ops.cuda.quant_whole import WHOLE_TILINGS
from luce.loaders.quant_formats import QUANT_FORMATS

HOPPER = KernelLimits(132, 227 << 10, 228 << 10)


def test_the_ring_is_as_deep_as_there_is_room() -> None:
    form, tiling = QUANT_FORMATS["Q4_K"], RingTiling(8, 2, 2, stages=99)
    stage = 256 * (64 + 8 + 4) + 16 * 256 + 2 * 8
    ring = Ring.of(form, tiling, HOPPER)
    assert ring.stages == (227 << 10) // stage
    assert ring.stages * stage < ring.nbytes <= 227 << 10
    halved = RingTiling(8, 2, 2, blocks=2, stages=99)
    assert Ring.of(form, halved, HOPPER).stages == (113 << 10) // stage


def test_too_few_stages_are_refused() -> None:
    for tiling in WHOLE_TILINGS.values():
        assert Ring.of(QUANT_FORMATS["Q8_0"], tiling, HOPPER).stages == tiling.stages
    with pytest.raises(ValueError, match="no room for enough stages of Q8_0"):
        Ring.of(QUANT_FORMATS["Q8_0"], RingTiling(16, 2, 8), HOPPER)
