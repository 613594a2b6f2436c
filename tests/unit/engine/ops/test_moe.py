"""Which experts a token gets, and what they make of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from luce.engine.ops.moe import Routing
from luce.engine.ops.ref.linear import PlainLinear
from luce.engine.ops.ref.moe import LoopedExperts, LoopedExpertsPacker
from luce.engine.ops.ref.moe import route as counting_route
from luce.engine.ops.ref.pointwise import silu_and_mul

EXPERTS, HIDDEN, SIZE = 6, 16, 8


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


def route(logits: torch.Tensor, num_chosen: int, *, norm_weights: bool) -> Routing:
    loads = torch.zeros(logits.shape[1], dtype=torch.int64)
    return counting_route(logits, num_chosen, norm_weights=norm_weights, loads=loads)


def experts() -> tuple[LoopedExperts, torch.Tensor, torch.Tensor]:
    gate_up = random(EXPERTS, 2 * SIZE, HIDDEN, seed=1)
    down = random(EXPERTS, HIDDEN, SIZE, seed=2)
    return LoopedExpertsPacker(PlainLinear, silu_and_mul)(gate_up, down), gate_up, down


def test_softmax_comes_before_the_choice() -> None:
    """Without scaling the weights are shares among all experts."""
    logits = random(7, EXPERTS, seed=3)
    found = route(logits, 2, norm_weights=False)
    shares = torch.softmax(logits, dim=-1)
    assert torch.equal(found.weights, shares.gather(1, found.experts))
    assert bool((found.weights.sum(-1) < 0.999).all())
    best = shares.topk(2, dim=-1).indices
    assert torch.equal(found.experts, best)


def test_scaled_weights_sum_to_one() -> None:
    logits = random(7, EXPERTS, seed=4)
    plain, scaled = (route(logits, 3, norm_weights=flag) for flag in (False, True))
    assert torch.equal(plain.experts, scaled.experts)
    torch.testing.assert_close(scaled.weights.sum(-1), torch.ones(7))
    torch.testing.assert_close(scaled.weights, plain.weights / plain.weights.sum(-1, keepdim=True))


def test_equals_go_to_the_lower_number() -> None:
    found = route(torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0, 3.0]]), 3, norm_weights=True)
    assert found.experts.tolist() == [[1, 2, 3]]
    torch.testing.assert_close(found.weights, torch.full((1, 3), 1 / 3))


def test_shares_are_wide_whatever_the_logits_are() -> None:
    """bfloat16 shares of near equal logits would not tell them apart."""
    logits = torch.tensor([[5.0, 5.03125, 1.0, 1.0, 1.0, 1.0]]).bfloat16()
    found = route(logits, 1, norm_weights=False)
    assert found.experts.tolist() == [[1]]
    assert found.weights.dtype == torch.bfloat16


def plain(
    x: torch.Tensor, routing: Routing, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Token by token, expert by expert."""
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for expert, weight in zip(routing.experts[token], routing.weights[token], strict=True):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            out[token] += weight * (down[expert] @ (F.silu(gate) * up))
    return out


@pytest.mark.parametrize("count", [1, 2, 33])
@pytest.mark.parametrize("num_chosen", [1, 3, EXPERTS])
def test_sum_of_the_chosen(count: int, num_chosen: int) -> None:
    packed, gate_up, down = experts()
    x = random(count, HIDDEN, seed=5)
    routing = route(random(count, EXPERTS, seed=6), num_chosen, norm_weights=True)
    torch.testing.assert_close(
        packed(x, routing), plain(x, routing, gate_up, down), rtol=1e-4, atol=1e-4
    )


def test_the_rest_of_the_batch_does_not_matter() -> None:
    packed, _, _ = experts()
    x = random(20, HIDDEN, seed=7)
    routing = route(random(20, EXPERTS, seed=8), 2, norm_weights=True)
    together = packed(x, routing)
    for token in range(20):
        part = slice(token, token + 1)
        alone = packed(x[part], Routing(routing.experts[part], routing.weights[part]))
        torch.testing.assert_close(together[part], alone, rtol=1e-5, atol=1e-5)


def test_the_order_of_a_tokens_experts_does_not_matter() -> None:
    packed, _, _ = experts()
    x = random(9, HIDDEN, seed=9)
    routing = route(random(9, EXPERTS, seed=10), 3, norm_weights=True)
    turned = Routing(routing.experts.flip(1), routing.weights.flip(1))
    assert torch.equal(packed(x, routing), packed(x, turned))


def test_memory() -> None:
    packed, gate_up, down = experts()
    assert packed.nbytes == gate_up.nbytes + down.nbytes


def test_loads_are_counted_up() -> None:
    loads = torch.zeros(EXPERTS, dtype=torch.int64)
    chosen = [
        counting_route(random(9, EXPERTS, seed=seed), 2, norm_weights=True, loads=loads).experts
        for seed in (11, 12)
    ]
    assert loads.tolist() == torch.cat(chosen).flatten().bincount(minlength=EXPERTS).tolist()
    assert loads.sum() == 2 * 9 * 2
