"""Typed look-ups in a model's metadata. Each error names the file, the key and the value.

A file says what it likes under any key, an array where a number belongs included; hence nothing
outside this module compares or converts a value whose kind it has not asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np

from luce.errors import ModelFileError

_T = TypeVar("_T")
_MAX_COUNT = 1 << 40
_MAX_SHOWN = 8
_MAX_LAYER_VALUES = 1 << 12
MIN_CONTEXT_LENGTH = 16
"""Tokens; no model was ever trained on less, so less is a damaged file."""
MIN_ROPE_THETA = 1.0
"""The frequencies fall with the powers of the base; it must be above 1."""


class Keys:
    """The keys of one file or section; remembers which were asked for.

    A null value counts as absent.

    Args:
        source: the file, which messages begin with; None leaves it out.
        values: what it says.
        prefix: put before each key, as `llama.` in GGUF files.
    """

    def __init__(self, source: object, values: Mapping[str, Any], prefix: str = "") -> None:
        self.source = source
        self.prefix = prefix
        self._begin = "" if source is None else f"{source}: "
        self._values = values
        self._seen: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key is there and not null, whatever its kind."""
        return self._stored(key) is not None

    def refuse(self, key: str, problem: str) -> NoReturn:
        """Raise for a value that is there and wrong."""
        value = self._values[self.prefix + key]
        raise ModelFileError(f"{self._begin}{self.prefix}{key} is {_shown(value)}: {problem}")

    def count(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number."""
        return self._whole(key, self._stored(key), default, minimum)

    def layer_count(self, key: str, default: int | None = None) -> int:
        """A whole number of each layer: one for all, or a list whose items are equal."""
        return self._whole(key, self._scalar(key), default, 1)

    def number(self, key: str, default: float | None = None, above: float = 0.0) -> float:
        """A finite number greater than `above`."""
        value = self._stored(key)
        if value is None:
            return self._default(key, default)
        if not is_number(value):
            self.refuse(key, "it must be a number")
        if not above < value < 1e30 or not math.isfinite(value):
            self.refuse(key, f"it is out of range: it must be above {above:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._stored(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "it must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self.optional_text(key)
        return self._default(key, default) if value is None else value

    def optional_text(self, key: str) -> str | None:
        """A string, or None if it is absent."""
        value = self._stored(key)
        if value is not None and not isinstance(value, str):
            self.refuse(key, "it must be a string")
        return value

    def optional_object(self, key: str) -> dict[str, Any] | None:
        """A JSON object, or None if it is absent."""
        value = self._stored(key)
        if value is not None and not isinstance(value, dict):
            self.refuse(key, "it must be an object")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        value = self._required(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.refuse(key, "it must be a list of strings")
        return value

    def only(self, key: str, allowed: tuple[Any, ...], problem: str) -> None:
        """Refuse a value other than those; absent is fine."""
        if isinstance(self._stored(key), list) and self._stored(key) in allowed:
            return
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

    def _whole(self, key: str, value: Any, default: int | None, minimum: int) -> int:
        if value is None:
            return self._default(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(key, "it must be a whole number")
        if value < minimum:
            self.refuse(key, f"it is out of range: it must be {minimum} at least")
        if value > _MAX_COUNT:
            self.refuse(key, "it is out of range")
        return value

    def _stored(self, key: str) -> Any:
        self._seen.add(key)
        return self._values.get(self.prefix + key)

    def _required(self, key: str) -> Any:
        value = self._stored(key)
        return self._default(key, None) if value is None else value

    def _scalar(self, key: str) -> Any:
        value = self._stored(key)
        if not isinstance(value, list | np.ndarray):
            return value
        if len(value) > _MAX_LAYER_VALUES:
            self.refuse(key, "a list of this length is not supported")
        items = value.tolist() if isinstance(value, np.ndarray) else value
        if not items or any(isinstance(item, list | np.ndarray | dict) for item in items):
            self.refuse(key, "a list of this kind is not supported")
        if any(item != items[0] for item in items):
            self.refuse(key, "values that differ from layer to layer are not supported")
        return items[0]

    def _default(self, key: str, default: _T | None) -> _T:
        if default is None:
            raise ModelFileError(f"{self._begin}{self.prefix}{key} is missing")
        return default


def layer_flags(keys: Keys, key: str) -> list[bool] | None:
    """A boolean for each layer, or None if there are none."""
    value = keys._stored(key)
    items = value.tolist() if isinstance(value, np.ndarray) else value
    if items is None:
        return None
    if not isinstance(items, list) or not all(isinstance(item, bool) for item in items):
        keys.refuse(key, "it must be a list of booleans")
    return items


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """A value for a message, cut short and on one line."""
    if isinstance(value, list | np.ndarray) and len(value) > _MAX_SHOWN:
        return f"a list of {len(value)} values"
    return " ".join(f"{value!r:.100}".split())
