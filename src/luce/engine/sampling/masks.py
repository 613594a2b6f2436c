"""Masks of tokens: which may be chosen, one bit each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

WORD_BITS = 32

Words = npt.NDArray[np.int32]

_OCTETS = np.arange(256, dtype=np.uint8)[:, np.newaxis]
_TERMS = np.where(np.unpackbits(_OCTETS, axis=1, bitorder="little"), 0, -np.inf).astype(np.float32)
"""Of each octet of a mask, what its eight tokens' logits get: f32 [256, 8]."""


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Masks of some of a step's lines; the others may choose anything.

    Attributes:
        lines: k lines, ascending.
        words: i32 [k, W]; bit i of word w stands for token 32 w + i, and 1 allows it.
    """

    lines: tuple[int, ...]
    words: Words


def mask_words(vocab_size: int) -> int:
    """Words of a mask."""
    return -(-vocab_size // WORD_BITS)


def set_bits(words: Words, token_ids: Iterable[int], *, allowed: bool) -> None:
    """Allow or forbid tokens in one mask, i32 [W]."""
    unsigned = words.view(np.uint32)
    for token_id in token_ids:
        bit = np.uint32(1 << token_id % WORD_BITS)
        if allowed:
            unsigned[token_id // WORD_BITS] |= bit
        else:
            unsigned[token_id // WORD_BITS] &= ~bit


def has_any(words: Words, token_ids: Iterable[int]) -> bool:
    """Whether one of these tokens is allowed by one mask, i32 [W]."""
    unsigned = words.view(np.uint32)
    return any(int(unsigned[i // WORD_BITS]) >> i % WORD_BITS & 1 for i in token_ids)


def apply_masks(logits: torch.Tensor, masks: TokenMasks) -> None:
    """Make the logits of forbidden tokens -inf.

    Args:
        logits: f32 [n, V], on a CPU; changed.
        masks: of some of its lines.
    """
    # Adding 0 or -inf is several times faster than filling where a bit says so.
    terms = _TERMS.take(masks.words.view(np.uint8), axis=0).reshape(len(masks.lines), -1)
    for line, line_terms in zip(masks.lines, torch.from_numpy(terms), strict=True):
        logits[line] += line_terms[: logits.shape[-1]]
