"""ForcedClose: the tokens that open and close a model's reasoning, and those that end it early."""

from __future__ import annotations

from dataclasses import dataclass

from luce.errors import ModelFileError
from luce.protocol.sampling import ReasoningBudget
from luce.text.channels import ChannelSpec
from luce.text.model_card import ModelCard
from luce.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ForcedClose:
    """How one model's reasoning is closed, or one request's; see `ReasoningBudget`.

    Attributes:
        starts_open: the prompt ends inside reasoning.
    """

    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]
    forced_ids: tuple[int, ...]
    starts_open: bool = False

    def after(self, max_tokens: int) -> ReasoningBudget:
        """Closes it after this many output tokens."""
        return ReasoningBudget(
            max_tokens, self.starts_open, self.open_ids, self.close_ids, self.forced_ids
        )


def forced_close(
    channels: ChannelSpec, card: ModelCard | None, tokenizer: Tokenizer
) -> ForcedClose:
    """How the reasoning of a model with these tags is closed.

    By the hint of its card word for word, or else by the card's marker, or else by the tag alone.

    Raises:
        ModelFileError: the card's text does not hold the tag, so that it would close nothing.
    """
    text = channels.close
    for key in ("thinking_marker", "thinking_terminator_hint"):
        given: str | None = None if card is None else getattr(card, key)
        if card is None or given is None:
            continue
        if channels.close not in given:
            raise ModelFileError(
                f"{card.origin}: {key} must hold {channels.close}, with which this model's chat "
                "template ends reasoning"
            )
        text = given
    return ForcedClose(
        open_ids=_ids(tokenizer, min(channels.opens, key=len)),
        close_ids=_ids(tokenizer, channels.close),
        forced_ids=_ids(tokenizer, text),
    )


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of a text in the middle of an output."""
    ids = tokenizer.encode_with_specials(text)
    if tokenizer.leading_space and tokenizer.token_bytes(ids[0]) == b" ":
        del ids[0]  # The space that such vocabularies put before a text.
    return tuple(ids)
