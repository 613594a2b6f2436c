"""Who gives way: the smallest set of models that is enough, the longest unused first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

_EXACT_UP_TO = 12
"""With more victims than this, sets are no longer compared one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A model that could give way.

    Attributes:
        frees: bytes by pool that come back.
        idle_s: since it was last used.
        is_resident: it serves; otherwise it sleeps and keeps something.
        is_idle: nothing runs on it and nobody waits for it.
        is_owed: it has not served all it came in for.
        reload_ms: what bringing it back costs.
    """

    name: str
    frees: Mapping[str, int]
    idle_s: float
    is_resident: bool = True
    is_idle: bool = True
    is_owed: bool = False
    reload_ms: int = 0


def choose(
    victims: Sequence[Victim], missing: Mapping[str, int], num_models: int
) -> tuple[Victim, ...] | None:
    """The smallest set that covers every shortage; None if not even all together do.

    Only models that own bytes where they are missing count, or any resident where only the number
    of models is too high. Of sets of one size the one with the longest unused models is taken;
    ties go to more bytes where they are missing, then to the cheaper reload, then by name.
    """
    useful = [v for v in victims if _helps(v, missing, num_models)]
    useful.sort(key=lambda v: (-v.idle_s, -_bytes(v, missing), v.reload_ms, v.name))
    if not _suffices(useful, missing, num_models):
        return None
    if len(useful) > _EXACT_UP_TO:
        return _greedy(useful, missing, num_models)
    for size in range(1, len(useful) + 1):
        for chosen in combinations(useful, size):
            if _suffices(chosen, missing, num_models):
                return chosen
    return None


def _greedy(
    victims: Sequence[Victim], missing: Mapping[str, int], num_models: int
) -> tuple[Victim, ...]:
    """In order until it is enough, then without those that later ones made needless."""
    chosen: list[Victim] = []
    for victim in victims:
        chosen.append(victim)
        if _suffices(chosen, missing, num_models):
            break
    for victim in reversed(chosen.copy()):
        rest = [other for other in chosen if other is not victim]
        if _suffices(rest, missing, num_models):
            chosen = rest
    return tuple(chosen)


def _helps(victim: Victim, missing: Mapping[str, int], num_models: int) -> bool:
    return _bytes(victim, missing) > 0 or (num_models > 0 and victim.is_resident)


def _bytes(victim: Victim, missing: Mapping[str, int]) -> int:
    return sum(victim.frees.get(pool, 0) for pool in missing)


def _suffices(victims: Sequence[Victim], missing: Mapping[str, int], num_models: int) -> bool:
    if sum(victim.is_resident for victim in victims) < num_models:
        return False
    return all(
        sum(victim.frees.get(pool, 0) for victim in victims) >= count
        for pool, count in missing.items()
    )
