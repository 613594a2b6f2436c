"""How the coordinator reaches the outside, and how patient it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from luce.errors import ApiError
from luce.placement.residency import Cooldown, Operation


class ResidencyEffects(Protocol):
    """What the coordinator has done; returns at once, answers come as events."""

    def start(self, operation: Operation) -> None:
        """Do this with a worker; answered by `Coordinator.finished`."""

    def abandon(self, operation: Operation) -> None:
        """Stop this load and end its process; no answer is needed any more."""

    def probe(self, devices: tuple[str, ...]) -> None:
        """Find out what is free; answered by `Coordinator.advance`."""

    def check(self, model: str) -> None:
        """Find out whether this model's files still are what was planned; answered by
        `Coordinator.checked`."""

    def wake(self, after_s: float) -> None:
        """Call `Coordinator.advance` after so long."""

    def publish(self) -> None:
        """States have changed: tell the router, at once."""

    def refuse(self, model: str, error: Callable[[], ApiError]) -> None:
        """End the wait of everyone who waits for this model alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOptions:
    """How patient it is.

    Attributes:
        cooldown: of models that failed.
        restores: whether displaced models come back when the target fails.
        abandons: whether making room ends when nobody waits for the target any more.
        drain_timeout_s: a swap that drains longer is given up; 0 = never.
        memory_patience_s: how long freed memory may take to be seen.
        idle_unload_s: who was idle this long gives its memory back; 0 = nobody.
    """

    cooldown: Cooldown = field(default_factory=Cooldown)
    restores: bool = True
    abandons: bool = False
    drain_timeout_s: float = 0.0
    memory_patience_s: float = 2.0
    idle_unload_s: float = 0.0
