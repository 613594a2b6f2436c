"""Mixtures of experts: routing against the reference, products against float64."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.moe import Routing
from luce.engine.ops.ref import moe as ref
from luce.engine.ops.triton import moe
from luce.engine.ops.triton.moe import FEW_TOKENS, DeviceExperts, MoeTiling, add_mixture, most_tiles
from luce.engine.ops.triton.moe_route import route, sort_pairs

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}
TILING = MoeTiling(16, 16, 32, 4, 2)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.isfinite().all()
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("norm_weights", [True, False])
@pytest.mark.parametrize(("num_experts", "chosen"), [(5, 2), (64, 8), (3, 3), (17, 1)])
def test_route(device: torch.device, num_experts: int, chosen: int, norm_weights: bool) -> None:
    # A column more, as where the shared expert's gate stands beside the router.
    logits = (noise(7, num_experts + 1) * 3).to(device)[:, :num_experts]
    logits[2] = 0.5
    logits[3, 1:3] = 9.0
    loads, expected_loads = (torch.full((num_experts,), 3, device=device) for _ in range(2))
    found = route(logits, chosen, norm_weights=norm_weights, loads=loads)
    expected = ref.route(logits, chosen, norm_weights=norm_weights, loads=expected_loads)
    assert torch.equal(loads, expected_loads)
    assert found.experts.dtype == torch.int64
    assert torch.equal(found.experts, expected.experts)
    torch.testing.assert_close(found.weights, expected.weights)


def test_route_of_logits_that_are_no_numbers_stays_inside(device: torch.device) -> None:
    logits = torch.full((2, 5), float("nan"), device=device)
    found = chosen_of(logits, 2)
    assert found.experts.min() >= 0
    assert found.experts.max() < 5


@pytest.mark.parametrize("tokens", [1, 5, 700])
def test_sorted_pairs(device: torch.device, tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    experts = torch.randint(2, 9, (tokens, 3), generator=generator).to(device)
    order, starts = sort_pairs(experts, 11)
    flat = experts.flatten()
    assert torch.equal(order.long(), flat.sort(stable=True).indices)
    counts = torch.bincount(flat, minlength=11)
    assert torch.equal(starts.diff().long(), counts)
    assert starts[0] == 0


def chosen_of(logits: torch.Tensor, num_chosen: int) -> Routing:
    loads = torch.zeros(logits.shape[1], dtype=torch.int64, device=logits.device)
    return route(logits, num_chosen, norm_weights=True, loads=loads)


def weights_of(
    num_experts: int, size: int, hidden: int, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    gate_up = noise(num_experts, 2 * size, hidden, seed=1) * hidden**-0.5
    down = noise(num_experts, hidden, size, seed=2) * size**-0.5
    return gate_up.to(device, dtype), down.to(device, dtype)


def oracle(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, routing: Routing
) -> torch.Tensor:
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for token, (experts, weights) in enumerate(zip(routing.experts, routing.weights, strict=True)):
        for expert, weight in zip(experts.tolist(), weights.double(), strict=True):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            inner = gate * gate.sigmoid() * up
            out[token] += weight * (down[expert].double() @ inner)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("tokens", [1, 3, FEW_TOKENS, FEW_TOKENS + 1, 70])
def test_experts(device: torch.device, dtype: torch.dtype, tokens: int) -> None:
    """Odd sizes; one expert takes most tokens and some take none."""
    num_experts, size, hidden, chosen = 6, 20, 48, 3
    gate_up, down = weights_of(num_experts, size, hidden, device, dtype)
    x = noise(tokens, hidden, seed=3).to(device, dtype)
    logits = noise(tokens, num_experts, seed=4)
    logits[:, 1] += 4.0
    logits[:, 5] -= 50.0
    routing = chosen_of(logits.to(device, dtype), chosen)
    experts = DeviceExperts(gate_up, down, small=TILING, large=TILING)
    found = experts(x, routing)
    assert found.dtype == dtype
    assert error(found, oracle(x, gate_up, down, routing)) < TOLERANCE[dtype]
    assert experts.nbytes == gate_up.nbytes + down.nbytes


@pytest.mark.parametrize("tokens", [2, 40])
def test_a_token_does_not_depend_on_the_others(device: torch.device, tokens: int) -> None:
    gate_up, down = weights_of(4, 16, 32, device, torch.float32)
    x = noise(tokens, 32, seed=5).to(device)
    routing = chosen_of(noise(tokens, 4, seed=6).to(device), 2)
    experts = DeviceExperts(gate_up, down, small=TILING, large=TILING)
    whole = experts(x, routing)
    count = 1 if tokens <= FEW_TOKENS else FEW_TOKENS + 1
    part = experts(x[:count], Routing(routing.experts[:count], routing.weights[:count]))
    assert torch.equal(whole[:count], part)


def test_unused_weights_are_not_read(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    gate_up, down = weights_of(4, 16, 32, device, torch.float32)
    gate_up[2], down[2] = float("nan"), float("nan")
    for few in (0, 8):
        monkeypatch.setattr(moe, "FEW_TOKENS", few)
        x = noise(3, 32, seed=5).to(device)
        chosen = torch.tensor([[0, 3], [1, 0], [3, 1]], device=device)
        routing = Routing(chosen, torch.full((3, 2), 0.5, device=device))
        found = DeviceExperts(gate_up, down, small=TILING, large=TILING)(x, routing)
        assert error(found, oracle(x, gate_up, down, routing)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("has_shared", [True, False])
def test_add_mixture(device: torch.device, dtype: torch.dtype, has_shared: bool) -> None:
    hidden, mixed, shared = (noise(3, 1100, seed=seed).to(device, dtype) for seed in range(3))
    gate = (noise(3, 5, seed=4) * 3).to(device, dtype)[:, 4:]
    expected = hidden.double() + mixed.double()
    if has_shared:
        expected += shared.double() * gate.double().sigmoid()
    given = (shared, gate) if has_shared else (None, None)
    found = add_mixture(hidden, mixed, *given)
    assert found is hidden
    assert error(found, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize(("pairs", "num_experts", "tile"), [(1, 8, 16), (100, 8, 16), (9, 9, 4)])
def test_tiles_suffice_whoever_the_pairs_go_to(pairs: int, num_experts: int, tile: int) -> None:
    generator = torch.Generator().manual_seed(pairs)
    for most in range(1, num_experts + 1):
        counts = torch.bincount(torch.randint(most, (pairs,), generator=generator))
        assert (-(-counts // tile)).sum() <= most_tiles(pairs, num_experts, tile)
