"""Typed look-ups in a model's metadata. Each error names the file, the key and the value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np

from luce.errors import ModelFileError

_T = TypeVar("_T")
_MAX_COUNT = 1 << 40


class Keys:
    """The keys of one file or section; remembers which were asked for.

    A null value counts as absent.

    Args:
        source: the file, for messages.
        values: what it says.
        prefix: put before each key, as `llama.` in GGUF files.
    """

    def __init__(self, source: object, values: Mapping[str, Any], prefix: str = "") -> None:
        self.source = source
        self.prefix = prefix
        self._values = values
        self._seen: set[str] = set()

    def get(self, key: str) -> Any:
        """The value, or None if it is absent."""
        self._seen.add(key)
        return self._values.get(self.prefix + key)

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise for a value that is there and wrong."""
        value = self._values[self.prefix + key]
        raise ModelFileError(f"{self.source}: {self.prefix}{key} is {value!r:.100}: {problem}")

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1; a per-layer array counts if all its items are equal."""
        value = self._scalar(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(key, "it must be a whole number")
        if not 1 <= value <= _MAX_COUNT:
            self.refuse(key, "it is out of range")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.refuse(key, "it must be a number")
        if not 0 < value < 1e30 or not math.isfinite(value):
            self.refuse(key, "it is out of range")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "it must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self.get(key)
        if value is None:
            return self._default(key, default)
        if not isinstance(value, str):
            self.refuse(key, "it must be a string")
        return value

    def only(self, key: str, allowed: tuple[Any, ...], problem: str) -> None:
        """Refuse a value other than those; absent is fine."""
        value = self._scalar(key)
        # 1 == True and 0 == False in Python, hence the types; 1 and 1.0 are both meant.
        if value is not None and not any(
            value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed
        ):
            self.refuse(key, problem)

    def refuse_unknown(self, harmless: Iterable[str]) -> None:
        """Refuse every key that nobody asked for and that is not known to be harmless."""
        known = self._seen.union(harmless)
        for full in self._values:
            key = full.removeprefix(self.prefix)
            is_ours = full.startswith(self.prefix)
            if is_ours and key not in known and self._values[full] is not None:
                self.refuse(
                    key, "luce does not know this key and cannot tell what it changes in the model"
                )

    def _scalar(self, key: str) -> Any:
        value = self.get(key)
        if not isinstance(value, list | np.ndarray):
            return value
        items = value.tolist() if isinstance(value, np.ndarray) else value
        if not items or any(isinstance(item, list | np.ndarray | dict) for item in items):
            self.refuse(key, "a list of this kind is not supported")
        if any(item != items[0] for item in items):
            self.refuse(key, "values that differ from layer to layer are not supported")
        return items[0]

    def _default(self, key: str, default: _T | None) -> _T:
        if default is None:
            raise ModelFileError(f"{self.source}: {self.prefix}{key} is missing")
        return default
