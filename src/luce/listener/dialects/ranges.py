"""Ranges of the numbers every dialect takes, and what to say outside of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from luce.errors import InvalidRequest
from luce.listener.dialects.logprobs import MAX_TOP_LOGPROBS
from luce.units import cut_number

MAX_CHOICES = 8
"""Most answers to one request; each takes a place of its own at the model."""

MAX_ITEMS = 10_000
"""Most messages, parts of one and tools of a request."""

MAX_STOP_CHARACTERS = 4096
"""Longest stop string."""

MAX_TEMPLATE_BYTES = 2**20
"""Most JSON of `chat_template_kwargs`."""

ItemT = TypeVar("ItemT")

ItemList = Annotated[list[ItemT], msgspec.Meta(max_length=MAX_ITEMS)]
"""A list of a request that is not too long to be looked at."""

StopString = Annotated[str, msgspec.Meta(max_length=MAX_STOP_CHARACTERS)]

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """A closed interval, open at the low end if `above`."""

    low: float
    high: float = math.inf
    above: bool = False

    def holds(self, value: float) -> bool:
        too_low = value <= self.low if self.above else value < self.low
        return math.isfinite(value) and not too_low and value <= self.high

    def __str__(self) -> str:
        low = f"greater than {self.low}" if self.above else f"at least {self.low}"
        return low if math.isinf(self.high) else f"{low} and at most {self.high}"


RANGES = {
    "temperature": Range(0, 100),
    "top_p": Range(0, 1, above=True),
    "top_k": Range(-1),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 100, above=True),
    "rep_pen": Range(0, 100, above=True),
    "rep_window": Range(0),
    "max_tokens": Range(1),
    "max_output_tokens": Range(1),
    "max_completion_tokens": Range(1),
    "min_tokens": Range(0),
    "top_logprobs": Range(0, MAX_TOP_LOGPROBS),
    "seed": Range(-(2**63), 2**64 - 1),
    "n": Range(1, MAX_CHOICES),
}


def check_ranges(request: object) -> None:
    """Check every field of `request` that has a range and is there.

    Raises:
        InvalidRequest: names the first field outside of its range.
    """
    for name, allowed in RANGES.items():
        value = getattr(request, name, None)
        # Fields that an API refuses anyway may be of any type.
        if isinstance(value, int | float) and not _holds(allowed, value):
            raise InvalidRequest(f"{name} must be {allowed}, not {cut_number(value)}.", param=name)


def seed64(seed: int | None) -> int | None:
    """A seed as the worker wants it: negative ones map to the upper half of 64 bits."""
    return None if seed is None else seed % 2**64


def top_k32(top_k: int | None) -> int | None:
    """-1 is another word for off; more than any vocabulary is as good as off."""
    return None if top_k is None else min(max(top_k, 0), _INT32_MAX)


def count32(num_tokens: int) -> int:
    """A number of tokens; more than any context is as good as all of them."""
    return min(num_tokens, _INT32_MAX)


def _holds(allowed: Range, value: float) -> bool:
    try:
        return allowed.holds(value)
    except OverflowError:
        # An integer no float can hold: beyond any end but infinity.
        return value > 0 and math.isinf(allowed.high)
