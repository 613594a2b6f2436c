"""A coordinator with fake requests, a fake clock, fake workers and fake memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from luce.errors import ApiError, ModelUnavailable
from luce.placement.byte_room import ByteOptions, ByteRoom
from luce.placement.coordinator import Coordinator
from luce.placement.effects import CoordinatorOptions
from luce.placement.ledger import Ledger, Pool
from luce.placement.residency import Cooldown, ModelRecord, Operation, Outcome, Residency
from luce.placement.samples import Samples
from luce.placement.situation import Rule
from luce.placement.turns import DeviceTurns, TurnOptions

GIB = 2**30


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeTraffic:
    """What requests do. `slots` of a resident are filled from those who wait."""

    clock: Clock
    running: dict[str, int] = field(default_factory=dict)
    arrivals: dict[str, list[float]] = field(default_factory=dict)
    slots: int = 4

    def in_flight(self, name: str) -> int:
        return self.running.get(name, 0)

    def waiting_for(self, name: str) -> int:
        return len(self.arrivals.get(name, ()))

    def oldest_wait_s(self, name: str) -> float:
        waiting = self.arrivals.get(name)
        return self.clock.now_s - waiting[0] if waiting else 0.0


class Bench:
    """Everything wired; `attaches` says whether residents take those who wait, like the router."""

    def __init__(
        self,
        records: list[ModelRecord],
        rule: Rule,
        options: CoordinatorOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.traffic = FakeTraffic(self.clock)
        self.operations: list[Operation] = []
        self.abandoned: list[Operation] = []
        self.probes: list[tuple[str, ...]] = []
        self.wakes: list[float] = []
        self.checks: list[str] = []
        self.changed: dict[str, str] = {}
        self.refused: list[tuple[str, ApiError]] = []
        self.served: list[str] = []
        self.attaches = True
        self.on_probe: Callable[[tuple[str, ...]], None] = lambda devices: None
        self.coordinator = Coordinator(
            records, rule, self.traffic, self, options, clock_s=self.clock
        )
        self.fleet = self.coordinator.fleet

    # --- effects ---------------------------------------------------------------------------

    def start(self, operation: Operation) -> None:
        self.operations.append(operation)

    def abandon(self, operation: Operation) -> None:
        self.operations.remove(operation)
        self.abandoned.append(operation)

    def probe(self, devices: tuple[str, ...]) -> None:
        self.probes.append(devices)
        self.on_probe(devices)
        self.coordinator.advance()

    def check(self, model: str) -> None:
        self.checks.append(model)
        self.coordinator.checked(model, self.changed.get(model, ""))

    def wake(self, after_s: float) -> None:
        self.wakes.append(after_s)

    def publish(self) -> None:
        for record in self.fleet if self.attaches else ():
            if record.state is Residency.COOLDOWN:
                self.refuse(record.name, partial(ModelUnavailable, record.problem))
            while record.state is Residency.READY and self._attach(record.name):
                self.coordinator.admitted(record.name)

    def refuse(self, model: str, error: Callable[[], ApiError]) -> None:
        for _ in range(self.traffic.waiting_for(model)):
            self.refused.append((model, error()))
        self.traffic.arrivals.pop(model, None)

    def _attach(self, name: str) -> bool:
        waiting = self.traffic.arrivals.get(name)
        if not waiting or self.traffic.in_flight(name) >= self.traffic.slots:
            return False
        waiting.pop(0)
        self.served.append(name)
        self.traffic.running[name] = self.traffic.in_flight(name) + 1
        return True

    # --- what tests do ---------------------------------------------------------------------

    def ask(self, *names: str) -> None:
        """A request for each arrives, in this order."""
        for name in names:
            self.traffic.arrivals.setdefault(name, []).append(self.clock.now_s)
            self.coordinator.advance()

    def leave(self, name: str) -> None:
        """Somebody who waits leaves."""
        self.traffic.arrivals[name].pop()
        self.coordinator.advance()

    def end(self, *names: str) -> None:
        """One running request of each ends."""
        for name in names:
            self.traffic.running[name] -= 1
            self.publish()
            self.coordinator.advance()

    def run(self, name: str, count: int = 1) -> None:
        """Requests run on a resident already."""
        self.traffic.running[name] = count

    def operation(self, name: str) -> Operation:
        (found,) = [op for op in self.operations if op.model == name]
        return found

    def finish(self, name: str, **outcome: Any) -> Operation:
        """The operation of this model ends."""
        operation = self.operation(name)
        self.operations.remove(operation)
        self.coordinator.finished(operation.number, Outcome(**outcome))
        return operation

    def finish_all(self) -> None:
        """Every operation ends well, and those that follow from that."""
        while self.operations:
            self.finish(self.operations[0].model)

    def passes(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.coordinator.advance()

    def state(self, name: str) -> str:
        return self.fleet[name].state.value

    def states(self) -> dict[str, str]:
        return {record.name: record.state.value for record in self.fleet}

    def under_way(self) -> list[tuple[str, str | None]]:
        """Model and depth of every operation; None: it loads."""
        return [(op.model, op.depth) for op in self.operations]


def taking_turns(
    devices: Mapping[str, tuple[str, ...]],
    residents: tuple[str, ...],
    turns: TurnOptions | None = None,
    options: CoordinatorOptions | None = None,
) -> Bench:
    """Models that share devices by turns; those not in `residents` were evicted at the start."""
    records = [ModelRecord(name=name, devices=used) for name, used in devices.items()]
    bench = Bench(records, DeviceTurns(turns or TurnOptions(linger_s=0.0)), options)
    for name in devices:
        depth = None if name in residents else "cold"
        bench.coordinator.started(name, Outcome(weight_bytes=10), depth)  # type: ignore[arg-type]
    bench.clock.now_s += 100.0
    bench.coordinator.open()
    return bench


@dataclass
class World:
    """What devices really hold.

    Attributes:
        total: by pool; the pool's only device has its name.
        external: by pool, of other programs.
        real: by model and pool, what its process has allocated.
        silent: pools whose driver does not answer.
    """

    total: dict[str, int]
    external: dict[str, int] = field(default_factory=dict)
    real: dict[str, dict[str, int]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)

    def used(self, pool: str) -> int:
        return sum(held.get(pool, 0) for held in self.real.values())

    def shares(self, pool: str) -> dict[str, int]:
        """What the driver says of our processes."""
        if pool in self.silent:
            return {}
        return {name: held[pool] for name, held in self.real.items() if pool in held}

    def free(self, pool: str) -> int | None:
        if pool in self.silent:
            return None
        return self.total[pool] - self.external.get(pool, 0) - self.used(pool)


class ByteBench(Bench):
    """Models that load on demand; nothing is resident at first, and loads allocate at their end
    unless a test says otherwise.

    Attributes:
        world: what devices hold.
        attributes: drivers say what each process holds.
    """

    def __init__(
        self,
        plans: Mapping[str, Mapping[str, int]],
        total: Mapping[str, int],
        *,
        byte_options: ByteOptions | None = None,
        pinned: tuple[str, ...] = (),
        margin: int = 0,
        **options: Any,
    ) -> None:
        clock = Clock()
        self.world = World(dict(total))
        self.attributes = False
        self.samples = Samples(clock)
        pools = [Pool(name, (name,), size, margin) for name, size in total.items()]
        self.ledger = Ledger(pools, plans, self.samples, pinned)
        rule = ByteRoom(self.ledger, self.samples, byte_options or ByteOptions())
        records = [
            ModelRecord(name=name, devices=tuple(plan), is_pinned=name in pinned)
            for name, plan in plans.items()
        ]
        settings: dict[str, Any] = {
            "restores": False,
            "abandons": True,
            "cooldown": Cooldown(30.0, 300.0),
        }
        super().__init__(
            records,
            rule,
            CoordinatorOptions(**(settings | options)),
            clock,
        )
        self.on_probe = self.sample
        self.coordinator.open()

    def sample(self, devices: tuple[str, ...]) -> None:
        for device in devices:
            shares = self.world.shares(device) if self.attributes else {}
            self.samples.put(device, self.world.free(device), self.samples.epoch, shares)

    def allocate(self, name: str, share: float = 1.0) -> None:
        """A process takes this share of its plan."""
        plan = self.ledger.plan_of(name)
        self.world.real[name] = {pool: int(share * size) for pool, size in plan.items()}

    def finish(self, name: str, **outcome: Any) -> Operation:
        operation = self.operation(name)
        failed = bool(outcome.get("error"))
        if operation.kind == "load" and not failed:
            self.allocate(name)
        elif operation.kind == "load" or not failed:
            kept = outcome.get("retained_bytes", 0)
            first = next(iter(self.ledger.plan_of(name)))
            self.world.real[name] = {first: kept} if kept else {}
        operation = super().finish(name, **outcome)
        self.ledger.check()
        return operation

    def resident(self, *names: str) -> None:
        """These come in and are idle."""
        for name in names:
            self.ask(name)
            self.finish(name)
            self.end(name)
            self.clock.now_s += 10.0

    def passes(self, seconds: float) -> None:
        super().passes(seconds)
        self.ledger.check()
