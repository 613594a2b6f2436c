"""Heads with gates against the reference."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.attention import HeadShape
from luce.engine.ops.ref.gated_heads import ReferenceGatedHeads
from luce.engine.ops.triton.gated_heads import DeviceGatedHeads


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("heads", [HeadShape(6, 2, 20), HeadShape(4, 1, 64), HeadShape(1, 1, 8)])
def test_split_and_gate(device: torch.device, dtype: torch.dtype, heads: HeadShape) -> None:
    generator = torch.Generator().manual_seed(0)
    width = 2 * (heads.num_heads + heads.num_kv_heads) * heads.head_dim
    projected = torch.randn(5, width, generator=generator).to(device, dtype)
    ours, plain = DeviceGatedHeads(), ReferenceGatedHeads()
    packed = ours.split(projected, heads)
    assert torch.equal(packed, plain.split(projected, heads))
    mixed = torch.randn(5, heads.num_heads * heads.head_dim, generator=generator)
    mixed = mixed.to(device, dtype)
    expected = plain.gate(mixed.double(), projected.double(), heads)
    found = ours.gate(mixed, projected, heads)
    bound = 1e-6 if dtype == torch.float32 else 2e-3
    assert ((found.double() - expected).norm() / expected.norm()).item() < bound
