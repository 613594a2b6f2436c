"""Budgets: how long a model may think, and how much of its output is kept for the reply.

What the operator says wins over the model's card, that over what is known of its family, and
that over one length for all. A request then gets a share of it: see `BudgetEnvelope.allot`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from luce.errors import UsageError
from luce.text.model_card import ModelCard
from luce.text.reasoning import EFFORTS, Effort, ReasoningRequest

DEFAULT_MAX_TOKENS = 16000
DEFAULT_REPLY_BUDGET = 4096

_FAMILIES = (
    ("qwen35", 32768),
    ("qwen36", 32768),
    ("qwen3", 32768),
    ("gemma4", 16384),
    ("laguna", 32768),
)
"""How architectures begin → output tokens of models without a card; first match counts."""

_LOW, _MEDIUM = 0.125, 0.5
"""Shares of the thinking budget."""


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """What the operator says; None or not there: nothing."""

    default_max_tokens: int | None = None
    think_max_tokens: int | None = None
    hard_limit_reply_budget: int | None = None
    effort_tiers: Mapping[Effort, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Allotment:
    """What one request gets, in tokens.

    Attributes:
        max_tokens: its whole output; 0: none at all.
        reasoning_tokens: output after which open reasoning is closed.
    """

    max_tokens: int
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class BudgetEnvelope:
    """The budgets of one model, in tokens.

    Attributes:
        default_max_tokens: output of requests that name none.
        hard_limit_reply_budget: kept for the reply; 0: reasoning is never closed by force.
        is_reply_budget_said: the operator said so; else short outputs keep half for the reply.
        think_max_tokens: most that a request without effort may think; if the operator said it,
            most that any may, but for tiers that the operator said too.
        effort_tiers: most that one with effort may think.
        source: where the lengths are from: a card, `family:...` or `hard-fallback`.
    """

    default_max_tokens: int
    hard_limit_reply_budget: int
    is_reply_budget_said: bool
    think_max_tokens: int
    effort_tiers: Mapping[Effort, int]
    source: str

    def within(self, max_ctx: int) -> BudgetEnvelope:
        """The same, tiers lowered to what a context leaves beside the reply."""
        most = max_ctx - _kept(self.hard_limit_reply_budget, self.is_reply_budget_said, max_ctx)
        tiers = {name: min(tier, max(0, most)) for name, tier in self.effort_tiers.items()}
        return replace(self, effort_tiers=tiers)

    def allot(self, request: ReasoningRequest, max_output: int) -> Allotment | None:
        """A request's share; None if it asked for no budget, or nothing is closed by force.

        `budget_tokens` wins over the effort. All is lowered to what there is, without a word.

        Args:
            request: what it says about reasoning.
            max_output: most tokens it may generate, by what it asked for and by its room.
        """
        limit = self.hard_limit_reply_budget
        if not request.has_envelope or limit == 0:
            return None
        kept = _kept(limit, self.is_reply_budget_said, max_output)
        reply = kept if request.reply_budget is None else min(request.reply_budget, limit)
        if request.budget_tokens is not None:
            thinking = min(request.budget_tokens, self.think_max_tokens)
        elif request.effort is not None:
            thinking = min(self.effort_tiers[request.effort], max(0, max_output - kept))
        else:
            thinking = self.think_max_tokens
        whole = min(thinking + reply, max_output)
        return Allotment(whole, max(0, whole - reply))


def resolve_budgets(
    options: BudgetOptions, card: ModelCard | None, architecture: str
) -> BudgetEnvelope:
    """The budgets of a model.

    Raises:
        UsageError: what the operator says makes a tier smaller than one of less effort.
    """
    length, source = _recommended(card, architecture)
    default = length if options.default_max_tokens is None else options.default_max_tokens
    limit, is_said = options.hard_limit_reply_budget, True
    if limit is None:
        limit, is_said = DEFAULT_REPLY_BUDGET, False
        if card is not None and card.hard_limit_reply_budget is not None:
            limit = card.hard_limit_reply_budget
    if options.think_max_tokens is not None:
        think_max = options.think_max_tokens
    else:
        total = default if card is None else min(default, card.max_tokens)
        think_max = max(0, total - _kept(limit, is_said, total))
    said: dict[Effort, int] = {} if card is None else dict(card.effort_tiers)
    if options.think_max_tokens is not None:
        said = {name: min(tier, think_max) for name, tier in said.items()}
    said |= options.effort_tiers
    _check_growing(said)
    highest = think_max
    if card is not None and card.complex_problem_max_tokens and options.think_max_tokens is None:
        most = card.complex_problem_max_tokens
        highest = max(think_max, most - _kept(limit, is_said, most))
    tiers = _with_missing(said, think_max, highest)
    return BudgetEnvelope(default, limit, is_said, think_max, tiers, source)


def _recommended(card: ModelCard | None, architecture: str) -> tuple[int, str]:
    """Output tokens for a model, and who says so."""
    if card is not None:
        return card.max_tokens, card.origin
    for family, length in _FAMILIES:
        if architecture.startswith(family):
            return length, f"family:{family}"
    return DEFAULT_MAX_TOKENS, "hard-fallback"


def _kept(limit: int, is_said: bool, total: int) -> int:
    """What is kept of an output for the reply.

    A limit that nobody asked for must not leave a short output without any thinking: then it is
    half of it.
    """
    return limit if is_said else min(limit, total // 2)


def _with_missing(said: Mapping[Effort, int], think_max: int, highest: int) -> dict[Effort, int]:
    """All tiers; those nobody said lie between the ones beside them."""
    # Source: the system we follow, whose cards leave tiers out that these shares give.
    usual: dict[Effort, int] = {
        "low": int(think_max * _LOW),
        "medium": int(think_max * _MEDIUM),
        "high": think_max,
        "x-high": (think_max + highest) // 2,
        "max": highest,
    }
    tiers: dict[Effort, int] = {}
    for index, effort in enumerate(EFFORTS):
        least = max((said[name] for name in EFFORTS[:index] if name in said), default=0)
        most = min((said[name] for name in EFFORTS[index:] if name in said), default=2**31)
        tiers[effort] = said.get(effort, min(max(usual[effort], least), most))
    return tiers


def _check_growing(said: Mapping[Effort, int]) -> None:
    for lower, higher in pairwise(effort for effort in EFFORTS if effort in said):
        if said[higher] < said[lower]:
            raise UsageError(
                f"reasoning effort {higher} has fewer tokens ({said[higher]}) than {lower} "
                f"({said[lower]}): set --reasoning-effort-{higher} and its neighbours so that "
                "they grow"
            )
