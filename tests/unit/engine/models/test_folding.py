"""Which norms go into products, and that weights are multiplied once."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from luce.engine.models import folding
from luce.engine.models.folding import NormFolding
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.candidates import OpRequest
from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import FoldedProducts, NormedProduct, NormWeight, ProjectQkv
from luce.engine.ops.ref.linear import PlainLinear
from luce.engine.ops.ref.qkv import PlacedProduct
from luce.engine.ops.select import OpSet, select_ops

GATED, QKV = cast("NormedProduct", object()), cast("ProjectQkv", object())


def foldable(linear: Linear) -> torch.Tensor | None:
    assert isinstance(linear, PlainLinear)
    return linear.weight if linear.bias is None else None


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> OpSet:
    """A host's operations, and products that fold."""
    products = FoldedProducts(foldable, GATED, QKV)
    monkeypatch.setattr(folding, "_folded_products", lambda _: products)
    return _host_ops()


def _host_ops() -> OpSet:
    request = OpRequest(torch.device("cpu"), torch.bfloat16, HeadShape(4, 2, 8), False)
    return select_ops(request)


def noise(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def test_weights_are_multiplied_once_they_are_there(ops: OpSet) -> None:
    gate_up, qkv = torch.zeros(6, 4).bfloat16(), torch.zeros(8, 4).bfloat16()
    norms = [NormWeight(torch.zeros(4).bfloat16(), 1e-6) for _ in range(2)]
    chosen = NormFolding(ops, torch.bfloat16)
    assert chosen.gated_product(norms[0], PlainLinear(gate_up, None)) is GATED
    assert chosen.project_qkv(norms[1], PlainLinear(qkv, None)) is QKV
    filled = [gate_up.copy_(noise(6, 4, seed=1)).clone(), qkv.copy_(noise(8, 4, seed=2)).clone()]
    factors = [norm.weight.copy_(noise(4, seed=3 + i)).clone() for i, norm in enumerate(norms)]
    chosen.finish()
    chosen.finish()
    for found, before, factor in zip((gate_up, qkv), filled, factors, strict=True):
        assert torch.equal(found, (before.float() * factor.float()).bfloat16())
    assert all(norm.weight.eq(1).all() for norm in norms), "a norm would be applied twice"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_types_keep_their_norms(ops: OpSet, dtype: torch.dtype) -> None:
    weight = noise(6, 4, seed=1).to(dtype)
    before = weight.clone()
    chosen = NormFolding(ops, dtype)
    norm = NormWeight(noise(4, seed=2).to(dtype), 1e-6)
    assert chosen.gated_product(norm, PlainLinear(weight, None)) is ops.gated_product
    chosen.finish()
    assert torch.equal(weight, before)


def test_products_that_cannot_keep_their_norms(ops: OpSet) -> None:
    linear = PlainLinear(noise(8, 4, seed=1), noise(8, seed=2))
    before, norm = linear.weight.clone(), NormWeight(noise(4, seed=3), 1e-6)
    chosen = NormFolding(ops, torch.bfloat16)
    project = chosen.project_qkv(norm, linear)
    assert project == PlacedProduct(ops.product, ops.place_qkv)
    chosen.finish()
    assert torch.equal(linear.weight, before)


def test_a_host_keeps_all_norms() -> None:
    ops = _host_ops()
    linear, norm = PlainLinear(noise(6, 4, seed=1), None), NormWeight(noise(4, seed=2), 1e-6)
    assert NormFolding(ops, torch.bfloat16).gated_product(norm, linear) is ops.gated_product
