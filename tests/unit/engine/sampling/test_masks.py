"""Masks as words of bits, and what they do to logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from luce.engine.sampling.masks import TokenMasks, apply_masks, has_any, mask_words, set_bits


@pytest.mark.parametrize(("vocab", "words"), [(1, 1), (32, 1), (33, 2), (49152, 1536)])
def test_words_of_a_vocabulary(vocab: int, words: int) -> None:
    assert mask_words(vocab) == words


def test_bits_are_set_and_cleared_without_touching_the_others() -> None:
    words = np.full(3, -1, dtype=np.int32)
    set_bits(words, (0, 31, 64), allowed=False)
    assert words.view(np.uint32).tolist() == [0x7FFFFFFE, 0xFFFFFFFF, 0xFFFFFFFE]
    set_bits(words, (31,), allowed=True)
    assert words.view(np.uint32).tolist() == [0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFE]


def test_has_any_looks_at_the_named_tokens_alone() -> None:
    words = np.zeros(2, dtype=np.int32)
    set_bits(words, (31, 40), allowed=True)
    assert has_any(words, (3, 31))
    assert has_any(words, (40,))
    assert not has_any(words, (30, 32, 41))
    assert not has_any(words, ())


def test_forbidden_logits_become_minus_infinity_in_the_named_lines() -> None:
    logits = torch.arange(3 * 40, dtype=torch.float32).reshape(3, 40)
    before = logits.clone()
    words = np.zeros((2, 2), dtype=np.int32)
    set_bits(words[0], (5, 39), allowed=True)
    set_bits(words[1], (0,), allowed=True)
    apply_masks(logits, TokenMasks((0, 2), words))
    assert logits[1].equal(before[1])
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [5, 39]
    assert torch.isfinite(logits[2]).nonzero().flatten().tolist() == [0]
    assert logits[0, 39] == before[0, 39]


def test_bits_behind_the_vocabulary_mean_nothing() -> None:
    logits = torch.zeros(1, 33)
    words = np.full((1, 2), -1, dtype=np.int32)
    apply_masks(logits, TokenMasks((0,), words))
    assert logits.tolist() == [[0.0] * 33]
