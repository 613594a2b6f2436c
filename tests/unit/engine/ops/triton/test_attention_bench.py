"""The bench of decode attention gives kernels what they take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from luce.engine.ops.attention import HeadShape

ROOT = Path(__file__).parents[5]


@pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="the benches are not there")
def test_triton_against_the_reference(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench.engine import attention

    monkeypatch.setattr(attention, "ENOUGH", 1)
    monkeypatch.setattr(attention, "MAX_CTX", 512)
    batch = attention.Batch(HeadShape(4, 2, 128), attention.Case("", [3, 300]), device)
    assert batch.error("triton") < 1e-2
    batch.lens[1] = 200
    assert batch.error("triton") > 1e-2, "the error is that of nothing"
