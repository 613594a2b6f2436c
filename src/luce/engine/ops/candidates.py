"""What implementations are chosen from, for what, and the choice itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from luce.engine.ops.attention import HeadShape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpRequest:
    """What the operations will be used for.

    Attributes:
        device: where.
        dtype: of activations and weights.
        heads: geometry of attention.
        interleaved_rope: rotary pairs are neighbours (2i, 2i+1) instead of halves (i, i+D/2).
        lanes: most sequences of a step that have one query; sizes a GPU's scratch memory.
        max_ctx: longest context in tokens; likewise.
        has_typed_cache: keys or values are stored otherwise than they are computed.
        block_tokens: tokens of a block of the cache.
        exact: activations are not to be rounded.
    """

    device: torch.device
    dtype: torch.dtype
    heads: HeadShape
    interleaved_rope: bool
    lanes: int = 1
    max_ctx: int = 1
    has_typed_cache: bool = False
    block_tokens: int = 16
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Candidate(Generic[T]):
    """One implementation.

    Attributes:
        name: as recorded.
        implementation: what is used.
        refusal: why it cannot serve a request, or None.
    """

    name: str
    implementation: T
    refusal: Callable[[OpRequest], str | None]


@dataclass(frozen=True, slots=True)
class OpChoice:
    """What was chosen for an operation, and what was not, with the reasons."""

    op: str
    chosen: str
    refused: tuple[tuple[str, str], ...]


def choose(op: str, candidates: list[Candidate[T]], request: OpRequest) -> tuple[T, OpChoice]:
    """The first candidate that serves the request."""
    refused: list[tuple[str, str]] = []
    for candidate in candidates:
        reason = candidate.refusal(request)
        if reason is None:
            return candidate.implementation, OpChoice(op, candidate.name, tuple(refused))
        refused.append((candidate.name, reason))
    raise AssertionError(f"no candidate serves {op}: {refused}")


def never(request: OpRequest) -> str | None:
    """Refuses nothing."""
    del request
    return None


def unless_cpu(request: OpRequest) -> str | None:
    """Refuses other devices."""
    return None if request.device.type == "cpu" else "made for a CPU"


def unless_cpu_float32(request: OpRequest) -> str | None:
    """Refuses other devices and types."""
    if request.dtype != torch.float32:
        return "made for float32"
    return unless_cpu(request)
