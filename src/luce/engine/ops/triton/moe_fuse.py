"""Makes mixtures of few tokens one operation, where experts are stored so and kernels work."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace

import torch

from luce.engine.device import kernel_limits, kernel_refusal
from luce.engine.ops.cuda.moe_many import ManyMixture
from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import ExpertMlp, Router
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.triton import moe_choose
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.ops.triton.moe_few import (
    DEFAULT_TILINGS,
    FewTilings,
    FewTokens,
)
from luce.engine.ops.triton.moe_quant import PlanesOfExperts, QuantExperts
from luce.engine.ops.triton.moe_trial import try_many, try_mixture
from luce.engine.ops.triton.probe import launch_refusal
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.loaders.quant_formats import GROUP

_log = logging.getLogger(__name__)

_MOST_GROUPS = 256
_MOST_WORDS = 1 << 31
"""Of all experts' codes: the second kernel counts them in 32 bits."""
TILINGS: FewTilings = DEFAULT_TILINGS
if torch.version.hip:
    # Off the compiler: more rows of the gate spill on gfx1100.
    TILINGS = (replace(TILINGS[0], inner_rows=2), replace(TILINGS[1], inner_rows=2))


def few_tokens(
    experts: ExpertMlp, gate_up: Linear | None, down: Linear | None, router: Router
) -> FewTokens | None:
    """`ops.moe.FuseFewTokens`; why there is none is logged."""
    few = _made(experts, gate_up, down)
    reason = few if isinstance(few, str) else _start_refusal(few, router)
    if reason is not None:
        _say(reason)
    return None if reason is not None or isinstance(few, str) else _with_many(few, router)


@functools.cache
def _say(reason: str) -> None:
    """Once: the layers of a model have the same one."""
    _log.warning("mixtures of few tokens are computed step by step: %s", reason)


def _made(experts: ExpertMlp, gate_up: Linear | None, down: Linear | None) -> FewTokens | str:
    """The mixture, or why there is none."""
    if not isinstance(experts, QuantExperts):
        return "experts are not quantised"
    inner, outer = experts.inner, experts.outer
    if max(inner.groups, outer.groups) > _MOST_GROUPS:
        return f"an expert's rows are longer than {_MOST_GROUPS * GROUP} columns"
    if outer.planes.codes.numel() >= _MOST_WORDS:
        return "the experts' matrices are larger than 32 bits can count"
    device = inner.planes.codes.device
    arrivals = torch.zeros(moe_choose.MOST_TOKENS, dtype=torch.int32, device=device)
    if gate_up is None or down is None:
        return FewTokens(inner, outer, None, None, arrivals, TILINGS)
    shared = [
        PlanesOfExperts(each.planes, 1)
        for each in (gate_up, down)
        if isinstance(each, TritonQuantLinear) and each.planes is not None
    ]
    if len(shared) != 2 or shared[1].groups > _MOST_GROUPS:
        return "the shared expert is not quantised, or not in one type, or too large"
    return FewTokens(inner, outer, shared[0], shared[1], arrivals, TILINGS)


def _with_many(few: FewTokens, router: Router) -> FewTokens:
    """The same with the kernel of more tokens, where it serves."""
    if kernel_refusal() is not None:
        return few
    stacks = (few.inner, few.outer, few.s_inner, few.s_outer)
    inner, outer, s_inner, s_outer = (None if each is None else each.planes for each in stacks)
    assert inner is not None
    assert outer is not None
    device = inner.codes.device
    arrivals = torch.zeros(kernel_limits(device).processors, dtype=torch.int32, device=device)
    many = ManyMixture(router.num_experts, inner, outer, s_inner, s_outer, arrivals)
    if many.refusal(router) is not None:
        return few
    facts = "many_tokens", many.shape(router), device
    tried = launch_refusal(facts, lambda: try_many(many, few, router))
    return few if tried is not None else replace(few, many=many)


def _start_refusal(few: FewTokens, router: Router) -> str | None:
    """Why its kernels are not to be used here, or None."""
    stacks = (few.inner, few.outer, few.s_inner, few.s_outer)
    sizes = [None if each is None else (each.rows, *each.flags.values()) for each in stacks]
    facts = "few_tokens", router.num_chosen, moe_choose.takes(router.gate, 1), *sizes
    return launch_refusal(facts, lambda: _try(few, router))


def _try(few: FewTokens, router: Router) -> None:
    """Launch each variant once, on numbers that do not matter and count for nobody; then compute.

    Raises:
        TrialError: a result is wrong.
    """
    loads, width = torch.zeros_like(router.loads), few.inner.planes.columns
    dtype = router.gate.weight.dtype if isinstance(router.gate, DeviceLinear) else torch.bfloat16
    norm = NormWeight(torch.ones(width, dtype=dtype, device=loads.device), 1e-6)
    for tokens in (1 << doubling for doubling in range(few.most_tokens.bit_length())):
        few(norm.weight.repeat(tokens, 1), norm, replace(router, loads=loads))
    try_mixture(few, router.num_chosen, dtype)
