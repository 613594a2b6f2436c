"""Typed look-ups of what a vocabulary is made of: lists of numbers, and tokens by their number."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from luce.loaders.keys import Keys, is_number

_NO_TOKEN = 2**32 - 1
"""What converters write for "there is no such token"."""


class VocabKeys(Keys):
    """`Keys` of a vocabulary."""

    def whole_numbers(self, key: str) -> list[int]:
        """A list of whole numbers."""
        numbers = self._numbers(key, "iu")
        if numbers is None:
            self.refuse(key, "it must be a list of whole numbers")
        return [int(item) for item in numbers.tolist()]

    def numbers(self, key: str) -> list[float]:
        """A list of finite numbers."""
        numbers = self._numbers(key, "iuf")
        if numbers is None or not np.isfinite(numbers).all():
            self.refuse(key, "it must be a list of numbers")
        return [float(item) for item in numbers.tolist()]

    def token_id(self, key: str, num_tokens: int) -> int | None:
        """An entry of a vocabulary, or None if the file says that there is no such token."""
        if not self.has(key):
            return None
        value = self._stored(key)
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(key, "it must be a whole number")
        if value == _NO_TOKEN:
            return None
        if not 0 <= value < num_tokens:
            self.refuse(key, f"it lies outside the vocabulary of {num_tokens} tokens")
        return value

    def _numbers(self, key: str, kinds: str) -> npt.NDArray[Any] | None:
        """The value as a flat array if it is one whose numpy kind is among `kinds`."""
        value = self._required(key)
        if isinstance(value, list) and all(map(is_number, value)):
            try:
                value = np.array(value)
            except OverflowError:
                return None
        is_flat = isinstance(value, np.ndarray) and value.ndim == 1
        return value if is_flat and value.dtype.kind in kinds else None
