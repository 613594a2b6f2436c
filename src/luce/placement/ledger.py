"""The books of device memory: what is promised, what is taken, what is on its way back.

Bytes are kept by pool: devices that draw on the same memory share one. Drivers say what is free;
the books say what that leaves out: promises whose bytes nobody can see yet, and bytes that are
being given back but still look taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from luce.placement.samples import FreeSample, Samples

Phase = Literal["absent", "pending", "resident", "leaving"]


class LedgerError(RuntimeError):
    """A bug of ours: bytes were promised or given back twice, or never."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Memory that some devices share.

    Attributes:
        name: of the pool; the device's UUID where it is one device's own.
        devices: UUIDs of those that draw on it.
        total_bytes: what there is, 0 = nobody says.
        margin_bytes: left free.
    """

    name: str
    devices: tuple[str, ...]
    total_bytes: int
    margin_bytes: int


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool in one moment.

    Attributes:
        free_bytes: by the driver; None: nobody knows.
        ours_bytes: of our models, and seen by the driver.
        pending_bytes: promised to loads and not seen yet.
        returning_bytes: of `ours_bytes`, what is being given back.
        pinned_bytes: of `ours_bytes` and `pending_bytes`, what never gives way.
        visible_bytes: what the driver sees of our models; what they were promised and do not use
            yet is not in it. None: as `ours_bytes`.
    """

    pool: Pool
    free_bytes: int | None
    ours_bytes: int
    pending_bytes: int
    returning_bytes: int
    pinned_bytes: int
    visible_bytes: int | None = None

    @property
    def external_bytes(self) -> int:
        """What others have taken; 0 while nobody knows."""
        if self.free_bytes is None:
            return 0
        visible = self.ours_bytes if self.visible_bytes is None else self.visible_bytes
        return max(0, self.pool.total_bytes - self.free_bytes - visible)

    @property
    def avail_bytes(self) -> int | None:
        """What a new model may take; negative: more is promised than there is.

        Source: spec swap-and-admission B3. The minimum guards against a driver that lags and
        against others that were forgotten.
        """
        if self.free_bytes is None or not self.pool.total_bytes:
            return None
        by_books = self.pool.total_bytes - self.external_bytes - self.ours_bytes
        return min(self.free_bytes, by_books) - self.pending_bytes - self.pool.margin_bytes


@dataclass(slots=True)
class _Account:
    """One model's bytes, by pool."""

    plan: Mapping[str, int]
    is_pinned: bool = False
    phase: Phase = "absent"
    held: dict[str, int] = field(default_factory=dict)
    """Seen by drivers: of a resident its charge, of a sleeper what it keeps."""
    kept: dict[str, int] = field(default_factory=dict)
    """What it held before a load that may come to nothing."""
    came_from: Phase = "resident"
    """Where it is again if it gives nothing back."""

    def counted(self, pool: str, seen: int | None) -> int:
        """What counts as its own: of a resident its charge, or what it was seen to take if that is
        more; of a load what shows, but never more than was promised.

        Args:
            pool: its name.
            seen: what the driver says it holds; None: it does not say.
        """
        held = self.held.get(pool, 0)
        if seen is None or self.phase not in ("pending", "resident"):
            return held
        most = seen if self.phase == "resident" else self.plan.get(pool, 0)
        return max(held, min(seen, most))

    def pending(self, pool: str, seen: int | None) -> int:
        """What was promised and does not show; never counted in both terms."""
        if self.phase != "pending":
            return 0
        return max(0, self.plan.get(pool, 0) - self.counted(pool, seen))


class Ledger:
    """Implements `placement.accounts.Accounts`. Every change is one move of one model."""

    def __init__(
        self,
        pools: Iterable[Pool],
        plans: Mapping[str, Mapping[str, int]],
        samples: Samples,
        pinned: Iterable[str] = (),
        rests: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Args:
        pools: all memory there is.
        plans: bytes by pool of each model.
        samples: what drivers say; told of each move.
        pinned: models that never give way.
        rests: bytes by pool of each model's process while the model is evicted, beside what it
            says it keeps.
        """
        self.pools = {pool.name: pool for pool in pools}
        never = set(pinned)
        self._accounts = {name: _Account(plan, name in never) for name, plan in plans.items()}
        self._samples = samples
        self._rests = rests or {}
        for plan in plans.values():
            _check_bytes(plan)

    # --- moves -----------------------------------------------------------------------------

    def replan(self, model: str, plan: Mapping[str, int]) -> None:
        """A model's next load will take this much; a load under way keeps its promise."""
        _check_bytes(plan)
        account = self._accounts[model]
        if account.phase == "pending":
            raise LedgerError(f"{model} is being loaded; its plan cannot change")
        account.plan = plan

    def reserve(self, model: str) -> None:
        """It may load: its planned bytes are taken from now on."""
        account = self._move(model, "absent", "pending")
        account.kept = dict(account.held)

    def settle(self, model: str, charge: Mapping[str, int]) -> None:
        """It is resident: it counts with what it takes, never with less than was planned."""
        _check_bytes(charge)
        account = self._move(model, "pending", "resident")
        names = {*account.plan, *charge}
        account.held = {p: max(account.plan.get(p, 0), charge.get(p, 0)) for p in names}

    def unload(self, model: str) -> None:
        """It begins to give its memory back; until that is seen, it is not free."""
        account = self._accounts[model]
        if account.phase not in ("resident", "absent"):
            raise LedgerError(f"{model} cannot give memory back while it is {account.phase}")
        account.came_from, account.phase = account.phase, "leaving"
        self._samples.moved()

    def keep(self, model: str, retained_bytes: int | None) -> None:
        """It is not resident any more and keeps so much, on its first pool; None: its process has
        ended."""
        if retained_bytes is not None and retained_bytes < 0:
            raise LedgerError(f"{model} keeps {retained_bytes} bytes")
        account = self._accounts[model]
        if account.phase not in ("leaving", "absent"):
            raise LedgerError(f"{model} cannot be out of memory while it is {account.phase}")
        first = next(iter(account.plan), None)
        account.phase = "absent"
        account.held = {} if retained_bytes is None else dict(self._rests.get(model, {}))
        if first is not None and retained_bytes:
            account.held[first] = account.held.get(first, 0) + retained_bytes
        self._samples.moved()

    def reopen(self, model: str) -> None:
        """It gave nothing back after all."""
        self._move(model, "leaving", self._accounts[model].came_from)

    def cancel(self, model: str) -> None:
        """Its load came to nothing; it holds what it held before."""
        account = self._move(model, "pending", "absent")
        account.held = account.kept

    def _move(self, model: str, source: Phase, target: Phase) -> _Account:
        account = self._accounts[model]
        if account.phase != source:
            raise LedgerError(f"{model} is {account.phase}, not {source}: it cannot be {target}")
        account.phase = target
        self._samples.moved()
        return account

    # --- what can be seen ------------------------------------------------------------------

    def plan_of(self, model: str) -> Mapping[str, int]:
        """Planned bytes by pool."""
        return self._accounts[model].plan

    def held_by(self, model: str) -> Mapping[str, int]:
        """Bytes by pool that drivers see of it."""
        return self._accounts[model].held

    def phase_of(self, model: str) -> Phase:
        """Where its bytes are."""
        return self._accounts[model].phase

    def needed_by(self, model: str) -> dict[str, int]:
        """Bytes by pool that its load would add to what it holds already."""
        account = self._accounts[model]
        return {p: max(0, n - account.held.get(p, 0)) for p, n in account.plan.items()}

    def state(self, pool: str, max_age_s: float | None = None) -> PoolState:
        """A pool as of the last samples.

        Args:
            pool: its name.
            max_age_s: see `Samples.free`.
        """
        samples = [self._samples.latest(device, max_age_s) for device in self.pools[pool].devices]
        known = [each.free_bytes for each in samples if each is not None]
        free = [each for each in known if each is not None]
        seen = _seen(samples)
        accounts = [(a, seen.get(name)) for name, a in self._accounts.items()]
        counted = [(a, a.counted(pool, shown), shown) for a, shown in accounts]
        return PoolState(
            pool=self.pools[pool],
            free_bytes=min(free) if len(free) == len(samples) else None,
            ours_bytes=sum(count for _, count, _ in counted),
            pending_bytes=sum(a.pending(pool, shown) for a, shown in accounts),
            returning_bytes=sum(count for a, count, _ in counted if a.phase == "leaving"),
            pinned_bytes=sum(
                count + a.pending(pool, shown) for a, count, shown in counted if a.is_pinned
            ),
            visible_bytes=sum(count if shown is None else shown for _, count, shown in counted),
        )

    def devices(self) -> Sequence[Mapping[str, Any]]:
        """Each pool with its bytes, for the status."""
        return [_row(self.state(pool)) | self._shares(pool) for pool in self.pools]

    def _shares(self, pool: str) -> dict[str, Any]:
        """What each model was planned to take of a pool, holds, and is seen to hold."""
        seen = _seen(self._samples.latest(device) for device in self.pools[pool].devices)
        accounts = {name: a for name, a in self._accounts.items() if pool in {**a.plan, **a.held}}
        return {
            "planned_bytes": {name: a.plan.get(pool, 0) for name, a in accounts.items()},
            "held_bytes": {name: a.held.get(pool, 0) for name, a in accounts.items()},
            "seen_bytes": dict(seen),
        }

    def check(self) -> None:
        """Every byte is accounted for exactly once.

        Raises:
            LedgerError: it is not.
        """
        for name, account in self._accounts.items():
            _check_bytes(account.held)
            if account.phase == "resident" and any(
                account.held.get(pool, 0) < planned for pool, planned in account.plan.items()
            ):
                raise LedgerError(f"{name} is resident and counts with less than was planned")
            unknown = set(account.held) - set(self.pools)
            if unknown:
                raise LedgerError(f"{name} holds bytes of {unknown}, which is no pool")


def _seen(samples: Iterable[FreeSample | None]) -> dict[str, int]:
    """What drivers say each model holds, over the devices of a pool."""
    seen: dict[str, int] = {}
    for sample in samples:
        for model, count in {} if sample is None else sample.shares.items():
            seen[model] = seen.get(model, 0) + count
    return seen


def _check_bytes(amounts: Mapping[str, int]) -> None:
    for pool, nbytes in amounts.items():
        if nbytes < 0:
            raise LedgerError(f"{nbytes} bytes on {pool}")


def _row(state: PoolState) -> dict[str, Any]:
    return {
        "device": state.pool.name,
        "total_bytes": state.pool.total_bytes,
        "free_bytes": state.free_bytes,
        "ours_bytes": state.ours_bytes,
        "visible_bytes": state.visible_bytes,
        "external_bytes": state.external_bytes,
        "pending_bytes": state.pending_bytes,
        "returning_bytes": state.returning_bytes,
        "pinned_bytes": state.pinned_bytes,
        "margin_bytes": state.pool.margin_bytes,
        "avail_bytes": state.avail_bytes,
    }
