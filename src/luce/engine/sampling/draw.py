"""Draws tokens: top-k, temperature, min-p, top-p, one uniform number a row.

Every cut is by value: tokens equal to the last one kept stay too. So what is kept, and what is
drawn, depends on a row's own logits and parameters alone and never on how a sort breaks ties or
on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from luce.engine.sampling.bounds import GREEDY_BELOW, usable_temperature

# The mass top-p asks for nearly always lies in this many tokens; sorting all is the fallback.
_HEAD = 1024


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How one row is drawn: `SamplingParams` with a positive temperature, and its number.

    A temperature below `bounds.GREEDY_BELOW` is computed as that.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    uniform: float


Choose = Callable[[torch.Tensor, Sequence[DrawParams | None]], torch.Tensor]
"""Tokens i64 [n] by logits f32 [n, V], which may be overwritten: the likeliest where there are no
parameters, else drawn; -1 where the logits are not numbers."""


def choose(logits: torch.Tensor, params: Sequence[DrawParams | None]) -> torch.Tensor:
    """`Choose` out of PyTorch's operations; leaves the logits as they are."""
    drawn = [(line, each) for line, each in enumerate(params) if each is not None]
    if len(drawn) == len(params):
        return draw(logits, [each for _, each in drawn])
    best = logits.max(dim=-1)
    ids = torch.where(best.values.isfinite(), best.indices, -1)
    if drawn:
        lines = [line for line, _ in drawn]
        ids[lines] = draw(logits[lines], [each for _, each in drawn])
    return ids


def draw(logits: torch.Tensor, params: Sequence[DrawParams]) -> torch.Tensor:
    """Draw one token a row.

    Args:
        logits: f32 [n, V].
        params: of each row.

    Returns:
        i64 [n]; -1 where the logits are not numbers.
    """
    probs = kept_probabilities(logits, params)
    cumulative = probs.double().cumsum(-1)
    total = cumulative[:, -1:]
    uniforms = _column([row.uniform for row in params], logits.device, torch.float64)
    # Rounding must not carry the product up to the total, where no token is.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    ids = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return torch.where((total > 0).squeeze(1) & total.isfinite().squeeze(1), ids, -1)


def kept_probabilities(logits: torch.Tensor, params: Sequence[DrawParams]) -> torch.Tensor:
    """Unnormalised probabilities, 0 for what was cut: f32 [n, V]."""
    logits = _keep_top_k(logits, params)
    usable = [usable_temperature(row.temperature) or GREEDY_BELOW for row in params]
    temperatures = _column(usable, logits.device, logits.dtype)
    # The maximum goes first, so that a tiny temperature divides 0, not infinity.
    shifted = logits - logits.max(-1, keepdim=True).values
    probs = torch.softmax(shifted / temperatures, dim=-1)
    if any(row.min_p > 0 for row in params):
        floors = _column([row.min_p for row in params], probs.device, probs.dtype)
        floors = floors * probs.max(-1, keepdim=True).values
        probs = probs.masked_fill(probs < floors, 0.0)
    return _keep_top_p(probs, params)


def _keep_top_k(logits: torch.Tensor, params: Sequence[DrawParams]) -> torch.Tensor:
    vocab_size = logits.shape[-1]
    limits = [row.top_k if 0 < row.top_k < vocab_size else vocab_size for row in params]
    rows = [index for index, limit in enumerate(limits) if limit < vocab_size]
    if not rows:
        return logits
    best = logits[rows].topk(max(limits[index] for index in rows), dim=-1).values
    last = torch.tensor([[limits[index] - 1] for index in rows], device=logits.device)
    floors = torch.full((len(limits), 1), -torch.inf, device=logits.device, dtype=logits.dtype)
    floors[rows] = best.gather(1, last)
    return logits.masked_fill(logits < floors, -torch.inf)


def _keep_top_p(probs: torch.Tensor, params: Sequence[DrawParams]) -> torch.Tensor:
    rows = [index for index, row in enumerate(params) if 0 < row.top_p < 1]
    if not rows:
        return probs
    chosen = probs[rows]
    shares = _column([params[index].top_p for index in rows], probs.device, torch.float64)
    needed = shares * chosen.double().sum(-1, keepdim=True)
    floors = torch.zeros(probs.shape[0], 1, device=probs.device, dtype=probs.dtype)
    floors[rows] = _smallest_kept(chosen, needed)
    return probs.masked_fill(probs < floors, 0.0)


def _smallest_kept(probs: torch.Tensor, needed: torch.Tensor) -> torch.Tensor:
    """Last value of the shortest descending prefix whose sum reaches `needed`: [n, 1]."""
    vocab_size = probs.shape[-1]
    best = probs.topk(min(_HEAD, vocab_size), dim=-1).values
    cumulative = best.double().cumsum(-1)
    if not bool((cumulative[:, -1:] >= needed).all()):
        best = probs.sort(dim=-1, descending=True).values
        cumulative = best.double().cumsum(-1)
    place = torch.searchsorted(cumulative, needed).clamp_(max=best.shape[-1] - 1)
    return best.gather(1, place)


def _column(values: list[float], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, device=device, dtype=dtype).unsqueeze(1)
