"""Tokens chosen by the native kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from luce.engine.native import library as native
from luce.engine.native.library import Choice, NativeLibrary, Op, Step
from luce.engine.sampling.draw import DrawParams

_GREEDY = Choice(temperature=0)


class NativeChooser:
    """`sampling.draw.Choose`: the largest logits and the cut of top-k are the same.

    Weights are e^x within 2 units in the last place, as PyTorch's are: a drawn token differs only
    where the drawn number lies within 1e-6 of the border between two, or a weight within as little
    of what min-p or top-p cut. A row's token depends on that row alone, on any number of threads.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._step = Step()

    def __call__(self, logits: torch.Tensor, params: Sequence[DrawParams | None]) -> torch.Tensor:
        """f32 [n, V], overwritten → i64 [n]."""
        assert logits.is_contiguous()
        vocab_size = logits.shape[1]
        choices = (Choice * len(params))(*(_choice(each, vocab_size) for each in params))
        op = Op(
            kind=native.CHOOSE,
            width=vocab_size,
            out=logits.data_ptr(),
            choices=ctypes.addressof(choices),
        )
        self._step.num_tokens = len(params)
        self._library.run((Op * 1)(op), self._step)
        return torch.tensor([each.token for each in choices])


def _choice(params: DrawParams | None, vocab_size: int) -> Choice:
    if params is None:
        return _GREEDY
    # A model's own default may be any number, and the kernels' have 32 bits.
    top_k = params.top_k if params.top_k < vocab_size else 0
    return Choice(params.top_p, params.uniform, params.temperature, params.min_p, top_k)
