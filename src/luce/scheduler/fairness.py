"""How a step's prompt tokens are dealt among the sequences that want them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """A sequence that could compute up to `num_tokens` prompt tokens in this step."""

    order: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Deal:
    """Tokens by `Claim.order`, and whose turn was the last."""

    grants: dict[int, int]
    last_order: int


def deal(claims: Sequence[Claim], budget: int, quantum: int, last_order: int) -> Deal:
    """Deal `budget` tokens in quanta, round-robin, starting after the one served last.

    Whatever the sizes, each claim gets a quantum before any gets its second; over several
    steps the start rotates, so a budget smaller than a round still reaches everyone.

    Args:
        claims: by ascending order, each for at least one token.
        budget: tokens to deal, at least one.
        quantum: tokens of one turn.
        last_order: `Deal.last_order` of the step before, -1 at first.

    Returns:
        Grants of at least one token each; their sum is the smaller of the budget and what
        is claimed.
    """
    turns = [claim for claim in claims if claim.order > last_order]
    turns += [claim for claim in claims if claim.order <= last_order]
    left = {claim.order: claim.num_tokens for claim in turns}
    grants: dict[int, int] = {}
    while budget and left:
        for order in list(left):
            turn = min(quantum, budget, left[order])
            if turn == 0:
                break
            grants[order] = grants.get(order, 0) + turn
            budget -= turn
            left[order] -= turn
            last_order = order
            if left[order] == 0:
                del left[order]
    return Deal(grants, last_order)
