"""ForcedClose: the tokens that open and close a model's reasoning, and those that end it early."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from luce.errors import ModelFileError
from luce.protocol.sampling import ReasoningBudget, ReasoningTexts
from luce.text.channels import ChannelSpec
from luce.text.model_card import ModelCard
from luce.text.tokenizer import Tokenizer

_BLANK = b" "
_SPACE_BEHIND = re.compile(r"[ \n]{0,4}")
"""What a grammar lets stand between reasoning and the answer."""


@dataclass(frozen=True, slots=True)
class ForcedClose:
    """How one model's reasoning is closed, or one request's; see `ReasoningBudget`.

    Attributes:
        bound_ids: as `forced_ids`, where a grammar says what comes behind the tag.
        starts_open: the prompt ends inside reasoning.
        is_bound: there is a grammar.
    """

    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]
    forced_ids: tuple[int, ...]
    bound_ids: tuple[int, ...] = ()
    texts: ReasoningTexts | None = None
    starts_open: bool = False
    is_bound: bool = False

    def after(self, max_tokens: int) -> ReasoningBudget:
        """Closes it after this many output tokens."""
        texts, forced_ids = self.texts, self.forced_ids
        if self.is_bound:
            forced_ids = self.bound_ids or forced_ids
            texts = None if texts is None else replace(texts, comes_first=True)
        return ReasoningBudget(
            max_tokens, self.starts_open, self.open_ids, self.close_ids, forced_ids, texts
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
    before, _, behind = text.partition(channels.close)
    bound = text if _SPACE_BEHIND.fullmatch(behind) else f"{before}{channels.close}"
    is_text = tokenizer.control_id(channels.close) is None
    return ForcedClose(
        open_ids=_ids(tokenizer, channels.opening),
        close_ids=_ids(tokenizer, channels.close),
        forced_ids=_ids(tokenizer, text),
        bound_ids=_ids(tokenizer, bound),
        texts=_texts(channels, tokenizer) if is_text else None,
    )


def _texts(channels: ChannelSpec, tokenizer: Tokenizer) -> ReasoningTexts:
    """Tags that are plain text; takes 2 us a token of the vocabulary."""
    close = channels.close
    tags = (channels.opening.encode(), close.encode())
    ends = tuple(tag[:n] for tag in tags for n in range(1, len(tag)))
    beginnings = tuple(tag[n:] for tag in tags for n in range(1, len(tag)))

    parts = {tag[i:n] for tag in tags for n in range(1, len(tag) + 1) for i in range(n)}

    def has_part(data: bytes) -> bool:
        if data.endswith(ends) or data.startswith(beginnings) or data in parts or data == _BLANK:
            return True
        return tags[0] in data or tags[1] in data

    known = ((i, tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
    return ReasoningTexts(
        opening=tags[0],
        close=tags[1],
        pieces={i: data for i, data in known if data and has_part(data)},
        half_ids=tuple(_ids(tokenizer, rest) for rest in _rests(close)),
    )


def _rests(tag: str) -> list[str]:
    """What is left of a tag, all of ASCII, behind its first byte, its first two ..."""
    return [tag[n:] for n in range(1, len(tag))]


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The tokens of a text in the middle of an output."""
    ids = tokenizer.encode_with_specials(text)
    if tokenizer.leading_space and tokenizer.token_bytes(ids[0]) == _BLANK:
        del ids[0]  # The space that such vocabularies put before a text.
    return tuple(ids)
