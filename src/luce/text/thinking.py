"""Thinking: what is settled about a model's reasoning when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from luce.text.budgets import BudgetEnvelope, BudgetOptions, resolve_budgets
from luce.text.channels import ChannelSpec
from luce.text.forced_close import ForcedClose, forced_close
from luce.text.model_card import ModelCard, find_card, tell_unknown_keys
from luce.text.reasoning import ReasoningRequest
from luce.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ThinkingOptions:
    """What the operator says.

    Attributes:
        cards_folder: model cards that win over those that come with luce.
    """

    cards_folder: Path | None = None
    budgets: BudgetOptions = BudgetOptions()


def budgets_and_card(
    name: str, architecture: str, options: ThinkingOptions
) -> tuple[BudgetEnvelope, ModelCard | None]:
    """What a model's card and the operator say together, and the card.

    Args:
        name: as for `Thinking.of`.

    Raises:
        ModelFileError: the card is damaged, or there is no such folder of cards.
        UsageError: what the operator says does not go together with the card.
    """
    card = find_card(name, options.cards_folder)
    return resolve_budgets(options.budgets, card, architecture), card


@dataclass(frozen=True, slots=True)
class Thinking:
    """A model's card, its budgets, and how its reasoning is closed.

    Attributes:
        close: None: it has no reasoning that could be told apart.
    """

    budgets: BudgetEnvelope
    card: ModelCard | None = None
    close: ForcedClose | None = None

    @classmethod
    def of(
        cls,
        name: str,
        architecture: str,
        channels: ChannelSpec | None,
        tokenizer: Tokenizer,
        options: ThinkingOptions,
    ) -> Thinking:
        """Settle it for one model.

        Args:
            name: by the model's own metadata; its card is found by it.

        Raises:
            ModelFileError: the card is damaged, or there is no such folder of cards.
            UsageError: what the operator says does not go together with the card.
        """
        budgets, card = budgets_and_card(name, architecture, options)
        if card is not None:
            tell_unknown_keys(card)
        return cls(
            budgets=budgets,
            card=card,
            close=None if channels is None else forced_close(channels, card, tokenizer),
        )

    def close_for(self, request: ReasoningRequest | None, in_reasoning: bool) -> ForcedClose | None:
        """How the reasoning of a request is closed; None: it asked for no budget.

        Args:
            request: what it says about reasoning.
            in_reasoning: its prompt ends inside reasoning.
        """
        if self.close is None or request is None or not request.has_envelope:
            return None
        return replace(self.close, starts_open=in_reasoning)

    def with_recommended(self, defaults: Mapping[str, float]) -> dict[str, float]:
        """Sampling defaults of the model's files, those of its card before them."""
        return {**defaults, **(self.card.sampling if self.card is not None else {})}
