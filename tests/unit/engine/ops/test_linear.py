"""Packed and plain products against float64, and the probe that guards the packed one."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.cpu import linear as cpu
from luce.engine.ops.cpu.linear import PackedLinear
from luce.engine.ops.linear import LinearPacker
from luce.engine.ops.ref.linear import PlainLinear


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("pack", [PackedLinear, PlainLinear])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 33, 130])
@pytest.mark.parametrize("has_bias", [True, False])
def test_product(pack: LinearPacker, rows: int, has_bias: bool) -> None:
    weight, x, residual = noise(70, 36), noise(rows, 36, seed=1), noise(rows, 70, seed=2)
    bias = noise(70, seed=3) if has_bias else None
    expected = x.double() @ weight.double().T
    if bias is not None:
        expected = expected + bias
    with torch.inference_mode():
        linear = pack(weight.clone(), bias)
        found = linear(x)
        added = linear.add_to(residual.clone(), x)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(added.double(), expected + residual, rtol=1e-5, atol=1e-5)
    assert linear.nbytes == 4 * (70 * 36 + (70 if has_bias else 0))


def test_who_holds_the_weight() -> None:
    weight = noise(4, 4)
    assert PlainLinear(weight, None).holds(weight)
    assert not PlainLinear(weight, None).holds(weight.clone())
    assert not PackedLinear(weight, None).holds(weight)


def test_probe_accepts_this_machine() -> None:
    assert cpu.refusal() is None


def test_probe_names_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PackedLinear.__call__
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, x: honest(self, x) * 1.001)
    reason = cpu.refusal()
    assert reason is not None
    assert "differs" in reason


def test_probe_survives_a_missing_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        pass

    monkeypatch.setattr(cpu, "_onednn", Nothing)
    reason = cpu.refusal()
    assert reason is not None
    assert "does not run here" in reason
    assert "\n" not in reason


def test_probe_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert cpu.refusal() == "this PyTorch has no oneDNN"
