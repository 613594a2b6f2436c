"""One model on its way in, and those that give way to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from luce.placement.residency import Depth
from luce.placement.situation import Eviction


@dataclass(slots=True, kw_only=True)
class Arrival:
    """A transition; written by the coordinator only. Times are on its clock, in seconds.

    Attributes:
        target: who comes in.
        began_s: when the first model was told to give way.
        leaving: who still gives way, and what each may keep.
        displaced: residents that have gone for it, with what they kept; they come back if the
            target does not come in.
        dropped: models that were made to keep less, with what they keep then.
        restoring: displaced ones on their way back; the target has failed.
        has_fallen_back: the one retry after dropping what others keep is used up.
        drained_s: when the last one had nothing left to do.
        warned_s: when people were last told that it takes long.
        problem: why the target does not come in.
        reason: why it was decided so.
        evict_ms: longest eviction.
    """

    target: str
    began_s: float
    leaving: dict[str, Depth] = field(default_factory=dict)
    displaced: dict[str, Depth] = field(default_factory=dict)
    dropped: dict[str, Depth] = field(default_factory=dict)
    restoring: set[str] = field(default_factory=set)
    has_fallen_back: bool = False
    drained_s: float | None = None
    warned_s: float = 0.0
    problem: str = ""
    reason: str = ""
    evict_ms: int = 0

    @property
    def has_failed(self) -> bool:
        """The target does not come in; what is left is to put things back."""
        return bool(self.problem)

    @property
    def is_over(self) -> bool:
        """It has failed and everything is back."""
        return self.has_failed and not self.leaving and not self.restoring

    def make_room(self, evictions: tuple[Eviction, ...], reason: str) -> None:
        """These give way now."""
        self.leaving.update({eviction.model: eviction.depth for eviction in evictions})
        self.reason = self.reason or reason
