"""Whether the kernels of a mixture of few tokens give on this machine what they should."""

from __future__ import annotations

from dataclasses import replace

import torch

from luce.engine.ops.cuda.moe_many import ManyMixture
from luce.engine.ops.moe import Router
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.random_planes import random_planes
from luce.engine.ops.ref.moe import route as plain_route
from luce.engine.ops.ref.pointwise import rms_norm
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.ops.triton.moe_few import FewTokens
from luce.engine.ops.triton.moe_quant import PlanesOfExperts
from luce.engine.ops.triton.probe import TrialError

_TOKENS = (1, 3, 6)
_MANY_TOKENS = (5, 16)
_MOST_APART = 2e-2
"""Of the norm of what is added; results in bfloat16, and a router's rounding, make 4e-3 of it."""


def try_mixture(few: FewTokens, num_chosen: int, dtype: torch.dtype) -> None:
    """Compute a mixture of as many random experts as a token chooses, which all of them are.

    Args:
        few: whose kernels are tried: the same constants, but for the number of experts.
        num_chosen: experts of a token.
        dtype: of activations.

    Raises:
        TrialError: the result is wrong, or another from time to time.
    """
    small = replace(
        few,
        inner=_random(few.inner, num_chosen),
        outer=_random(few.outer, num_chosen),
        s_inner=None if few.s_inner is None else _random(few.s_inner, 1),
        s_outer=None if few.s_outer is None else _random(few.s_outer, 1),
    )
    hidden_size, device = small.inner.planes.columns, few.arrivals.device
    has_gate = small.s_inner is not None

    def noise(*shape: int, spread: float = 1.0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(shape[0])
        return (torch.randn(*shape, generator=generator) * spread).to(device, dtype)

    matrix = noise(num_chosen + has_gate, hidden_size, spread=hidden_size**-0.5)
    loads = torch.zeros(num_chosen, dtype=torch.int64, device=device)
    router = Router(DeviceLinear(matrix, None), num_chosen, num_chosen, True, plain_route, loads)
    # Sums of random codes are large: the norm makes numbers of the usual size of them.
    spread = float(_matrix(small.inner, 0).square().mean().sqrt()) * hidden_size**0.5
    norm = NormWeight(noise(hidden_size).abs().add(0.5) / spread, 1e-6)
    for tokens in _TOKENS:
        x = noise(tokens, hidden_size)
        found, again = (small(x.clone(), norm, router) for _ in range(2))
        added = _expected(small, x, norm, router)
        apart = (found.float() - x.float() - added).norm() / added.norm()
        if not float(apart) < _MOST_APART + _rounding(x, added):
            raise TrialError(f"a mixture of {tokens} tokens is {float(apart):.1e} of its norm off")
        if not torch.equal(found, again):
            raise TrialError(f"a mixture of {tokens} tokens is another from time to time")


def try_many(many: ManyMixture, few: FewTokens, router: Router) -> None:
    """Compute a mixture of as many random experts as a token chooses by both.

    Args:
        many: whose kernels are tried: the same constants, but for experts that nobody chooses.
        few: the same mixture, whose kernels were tried.
        router: of it.

    Raises:
        TrialError: the result is wrong, or another from time to time.
    """
    chosen, hidden_size = router.num_chosen, few.inner.planes.columns
    inner, outer = _random(few.inner, chosen), _random(few.outer, chosen)
    s_inner, s_outer = (
        None if each is None else _random(each, 1) for each in (few.s_inner, few.s_outer)
    )
    plain = replace(few, inner=inner, outer=outer, s_inner=s_inner, s_outer=s_outer, many=None)
    tried = replace(
        many,
        inner=inner.planes,
        outer=outer.planes,
        s_inner=None if s_inner is None else s_inner.planes,
        s_outer=None if s_outer is None else s_outer.planes,
    )
    generator = torch.Generator().manual_seed(chosen)
    device, loads = few.arrivals.device, torch.zeros_like(router.loads)
    rows = router.num_experts + (s_inner is not None)
    spread = float(_matrix(inner, 0).square().mean().sqrt()) * hidden_size**0.5
    matrix = torch.randn(rows, hidden_size, generator=generator) * (spread * hidden_size**-0.5)
    # Every token has something in common, by which it chooses none that is not there.
    matrix[chosen : router.num_experts, 0] = -8.0 * spread
    gate = DeviceLinear(matrix.to(device, torch.bfloat16), None)
    mine = replace(router, gate=gate, loads=loads)
    weight = torch.full((hidden_size,), 1.0 / spread, device=device, dtype=torch.bfloat16)
    norm = NormWeight(weight, 1e-6)
    for tokens in _MANY_TOKENS:
        x = torch.randn(tokens, hidden_size, generator=generator).to(device, torch.bfloat16)
        x[:, 0] = 4.0
        expected = plain(x.clone(), norm, mine).float() - x.float()
        found, again = (tried.add(x.clone(), norm, mine) for _ in range(2))
        apart = (found.float() - x.float() - expected).norm() / expected.norm()
        if not float(apart) < _MOST_APART + 2 * _rounding(x, expected):
            raise TrialError(f"a mixture of {tokens} tokens is {float(apart):.1e} of its norm off")
        if not torch.equal(found, again):
            raise TrialError(f"a mixture of {tokens} tokens is another from time to time")


def _rounding(x: torch.Tensor, added: torch.Tensor) -> float:
    """What rounding the sum of both to x's type makes of the norm of what is added."""
    return float(torch.finfo(x.dtype).eps * x.float().norm() / added.norm())


def _random(stack: PlanesOfExperts, count: int) -> PlanesOfExperts:
    planes = stack.planes
    rows = count * stack.rows
    made = random_planes(planes.format, rows, planes.columns, planes.codes.device)
    return PlanesOfExperts(made, count)


def _expected(few: FewTokens, x: torch.Tensor, norm: NormWeight, router: Router) -> torch.Tensor:
    """What the mixture adds, operation by operation, in float32."""
    normal = rms_norm(x, norm.weight, norm.eps)
    routing, gate = router.choose(normal)
    total = torch.zeros_like(normal, dtype=torch.float32)
    for expert in range(router.num_chosen):
        # One by one: decoded, all of them might not find room.
        result = _block(normal.float(), _matrix(few.inner, expert), _matrix(few.outer, expert))
        weight = (routing.weights.float() * (routing.experts == expert)).sum(1, keepdim=True)
        total += weight * result
    if few.s_inner is not None and few.s_outer is not None and gate is not None:
        parts = _matrix(few.s_inner, 0), _matrix(few.s_outer, 0)
        total += gate.float().sigmoid() * _block(normal.float(), *parts)
    return total


def _matrix(stack: PlanesOfExperts, expert: int) -> torch.Tensor:
    """An expert's matrix, decoded: f32 [rows, columns]."""
    rows = torch.arange(stack.rows, device=stack.planes.codes.device) + expert * stack.rows
    return decode(stack.planes.gathered(rows)).float()


def _block(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ gate_up.T).chunk(2, dim=1)
    return (gate * gate.sigmoid() * up) @ down.T
