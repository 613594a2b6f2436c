"""Quantised experts against float64 over the values their file stands for."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.moe import Routing
from luce.engine.ops.triton import moe_quant
from luce.engine.ops.triton.gated_mlp import silu_and_mul
from luce.engine.ops.triton.moe import FEW_TOKENS
from luce.engine.ops.triton.moe_quant import QuantExperts, QuantMoeTiling
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quants import dequantize
from luce.testing.quant_blocks import random_blocks

TILING = QuantMoeTiling(16, 128, 4)
NUM_EXPERTS, CHOSEN = 5, 2


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(
    type_name: str, rows: int, columns: int, device: torch.device
) -> tuple[QuantPlanes, torch.Tensor]:
    """Planes of all experts, and their values [E, rows, columns]."""
    whole = NUM_EXPERTS * rows
    raw = random_blocks(type_name, whole, columns, torch.Generator().manual_seed(rows))
    values = torch.from_numpy(dequantize(type_name, raw.numpy(), (whole, columns)))
    planes = repack(type_name, raw.to(device), whole, columns)
    return planes, values.view(NUM_EXPERTS, rows, columns).double()


def routing_of(tokens: int, device: torch.device) -> Routing:
    """Nobody goes to expert 2, most go to expert 4."""
    first = torch.arange(tokens) % 2
    second = torch.where(torch.arange(tokens) % 3 == 0, 3, 4)
    weights = noise(tokens, CHOSEN, seed=4).abs()
    return Routing(torch.stack([first, second], 1).to(device), weights.to(device))


@pytest.mark.parametrize(
    ("types", "sizes"),
    [
        (("Q4_K", "Q6_K"), (256, 256)),
        (("Q8_0", "Q4_0"), (96, 160)),
        (("IQ4_XS", "Q2_K"), (256, 256)),
    ],
)
@pytest.mark.parametrize("tokens", [3, FEW_TOKENS + 12])
def test_experts(
    device: torch.device,
    types: tuple[str, str],
    sizes: tuple[int, int],
    tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, hidden = sizes
    # Few programs: the interpreter takes them one by one.
    monkeypatch.setattr(moe_quant, "_VECTOR_ELEMENTS", 1024)
    gate_up, gate_up_values = made(types[0], 2 * size, hidden, device)
    down, down_values = made(types[1], hidden, size, device)
    routing = routing_of(tokens, device)
    x = noise(tokens, hidden, seed=3)
    x /= (gate_up_values.float() @ x.T).std()
    experts = QuantExperts(gate_up, down, NUM_EXPERTS, silu_and_mul, (TILING, TILING))
    found = experts(x.to(device), routing).cpu()
    expected = torch.zeros(tokens, hidden, dtype=torch.float64)
    for token in range(tokens):
        chosen = zip(routing.experts[token].tolist(), routing.weights[token].tolist(), strict=True)
        for expert, weight in chosen:
            gate, up = (gate_up_values[expert] @ x[token].double()).chunk(2)
            expected[token] += weight * (down_values[expert] @ (gate * gate.sigmoid() * up))
    assert found.isfinite().all()
    assert ((found.double() - expected).norm() / expected.norm()).item() < 1e-4
    assert experts.nbytes == gate_up.nbytes + down.nbytes
