"""A vocabulary as grammars see it: every token's bytes, and which tokens are no text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from luce.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenVocabulary:
    """What a worker needs to hold output to a grammar.

    Attributes:
        tokens: the bytes of each id, empty for an id without text.
        control_ids: control tokens, ascending; their bytes are their names.
        end_ids: tokens that end a generation.
    """

    tokens: list[bytes] = field(repr=False)
    control_ids: tuple[int, ...]
    end_ids: tuple[int, ...]


def token_vocabulary(
    tokenizer: Tokenizer, end_ids: Sequence[int], vocab_size: int
) -> TokenVocabulary:
    """List a tokenizer's tokens; takes 2 µs each, so half a second for the largest vocabularies.

    Args:
        tokenizer: whose tokens.
        end_ids: tokens that end a generation.
        vocab_size: rows of the model's embedding; ids behind the tokenizer's have no text.
    """
    known = min(tokenizer.vocab_size, vocab_size)
    tokens = [tokenizer.token_bytes(token_id) for token_id in range(known)]
    tokens += [b""] * (vocab_size - known)
    control_ids = tuple(sorted(i for i in tokenizer.special_ids if i < vocab_size))
    return TokenVocabulary(tokens, control_ids, tuple(i for i in end_ids if i < vocab_size))
