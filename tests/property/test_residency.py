"""Any order of events: nothing is promised twice, nobody is killed, everybody is served or told.

Rows B9 (property) and B48 of the specification: 10,000 events over three devices and six models.
`LUCE_RESIDENCY_SEED` chooses another run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from luce.errors import ModelUnavailable
from luce.placement.byte_room import ByteOptions
from luce.placement.residency import Residency
from luce.testing.placement_bench import Bench, ByteBench, taking_turns

SEED = int(os.environ.get("LUCE_RESIDENCY_SEED", "7"))
NUM_EVENTS = 10_000

PLANS = {
    "a": {"g0": 60},
    "b": {"g0": 45},
    "c": {"g0": 30, "g1": 30},
    "d": {"g1": 70},
    "e": {"g2": 50},
    "f": {"g1": 20, "g2": 60},
}
TOTAL = {"g0": 100, "g1": 100, "g2": 100}


def unload(bench: Bench, name: str) -> None:
    bench.coordinator.unload(name, lambda: ModelUnavailable("It was unloaded."))


class Storm:
    """Random events against models that load on demand."""

    def __init__(self, seed: int, models_max: int, *, attributes: bool) -> None:
        self.random = random.Random(seed)
        options = ByteOptions(models_max=models_max)
        self.bench = ByteBench(PLANS, TOTAL, byte_options=options)
        self.bench.attributes = attributes
        self.asked = 0
        self.left = 0
        self.out_of_memory: list[str] = []

    def run(self, num_events: int) -> None:
        events: list[Callable[[], None]] = [
            *[self.ask] * 4,
            *[self.end] * 4,
            *[self.finish] * 5,
            *[self.show] * 3,
            *[self.pause] * 4,
            self.leave,
            self.crash,
            self.fail,
            self.unload,
            self.take_outside,
            self.give_outside,
        ]
        for _ in range(num_events):
            self.random.choice(events)()
            self.check()

    # --- events ----------------------------------------------------------------------------

    def ask(self) -> None:
        self.asked += 1
        self.bench.ask(self.random.choice(list(PLANS)))

    def end(self) -> None:
        busy = [name for name, count in self.bench.traffic.running.items() if count]
        if busy:
            self.bench.end(self.random.choice(busy))

    def finish(self) -> None:
        if self.bench.operations:
            operation = self.random.choice(self.bench.operations)
            retained = 2 if operation.depth == "cold" and self.random.random() < 0.5 else 0
            self.bench.finish(operation.model, retained_bytes=retained)

    def show(self) -> None:
        """A load has allocated a part of its plan, and a driver has seen it."""
        loads = [op.model for op in self.bench.operations if op.kind == "load"]
        if loads:
            name = self.random.choice(loads)
            before = self.bench.world.real.get(name, {})
            self.bench.allocate(name, self.random.random())
            now = self.bench.world.real[name]
            for pool in now:
                now[pool] = max(now[pool], before.get(pool, 0))

    def pause(self) -> None:
        self.bench.passes(self.random.choice([0.01, 0.25, 1.0]))

    def leave(self) -> None:
        waiting = [name for name, queue in self.bench.traffic.arrivals.items() if queue]
        if waiting:
            self.left += 1
            self.bench.leave(self.random.choice(waiting))

    def crash(self) -> None:
        """A sleeping process dies."""
        name = self.random.choice(list(PLANS))
        record = self.bench.fleet[name]
        if record.is_absent and record.kept is not None:
            self.bench.world.real.pop(name, None)
            self.bench.coordinator.lost(name)

    def fail(self) -> None:
        if self.bench.operations and self.random.random() < 0.3:
            operation = self.random.choice(self.bench.operations)
            gone = operation.kind == "load"
            self.bench.finish(operation.model, error="it broke", is_gone=gone)

    def unload(self) -> None:
        """Somebody takes a model out; the process of a load ends at once."""
        name = self.random.choice(list(PLANS))
        if self.random.random() < 0.3:
            if self.bench.state(name) == "loading":
                self.bench.world.real.pop(name, None)
            unload(self.bench, name)

    def take_outside(self) -> None:
        """Another program takes memory that nobody has been promised; that takes its time."""
        self.bench.clock.now_s += 0.1
        pool = self.random.choice(list(TOTAL))
        free = self.bench.world.free(pool)
        assert free is not None
        left = free - self.bench.ledger.state(pool).pending_bytes
        if left > 1:
            taken = self.random.randrange(1, left)
            outside = self.bench.world.external
            outside[pool] = outside.get(pool, 0) + taken

    def give_outside(self) -> None:
        pool = self.random.choice(list(TOTAL))
        outside = self.bench.world.external.get(pool, 0)
        self.bench.world.external[pool] = self.random.randrange(outside + 1)

    # --- what always holds -----------------------------------------------------------------

    def check(self) -> None:
        bench = self.bench
        bench.ledger.check()
        for pool, total in TOTAL.items():
            used = bench.world.used(pool) + bench.world.external.get(pool, 0)
            assert used <= total, f"{pool} is over-committed"
            state = bench.ledger.state(pool)
            assert min(state.ours_bytes, state.pending_bytes, state.external_bytes) >= 0
            assert state.visible_bytes is not None
            assert 0 <= state.visible_bytes <= total
        under_way = {op.model: op.kind for op in bench.operations}
        for record in bench.fleet:
            phase = bench.ledger.phase_of(record.name)
            loads = record.state in (Residency.RESERVED, Residency.LOADING)
            assert loads == (phase == "pending") == (under_way.get(record.name) == "load")
            assert (record.state is Residency.UNLOADING) == (phase == "leaving")
            assert record.is_resident == (phase == "resident")
            running = bench.traffic.in_flight(record.name)
            assert not running or record.is_resident, f"{record.name} was taken away at work"

    def calm_down(self) -> None:
        """The storm is over: everything that waits gets its end."""
        self.bench.world.external.clear()
        for _ in range(4000):
            if not self.bench.operations and not any(self.bench.traffic.arrivals.values()):
                break
            for operation in list(self.bench.operations):
                self.bench.finish(operation.model)
            for name, count in dict(self.bench.traffic.running).items():
                self.bench.end(*[name] * count)
            self.bench.passes(0.25)
            self.check()


@pytest.mark.parametrize(("models_max", "attributes"), [(0, True), (2, False)])
def test_b48_ten_thousand_events(models_max: int, attributes: bool) -> None:
    storm = Storm(SEED + models_max, models_max, attributes=attributes)
    storm.run(NUM_EVENTS // 2)
    storm.calm_down()
    bench = storm.bench
    assert not any(bench.traffic.arrivals.values())
    ended = len(bench.served) + len(bench.refused) + storm.left
    assert ended == storm.asked
    assert len(bench.served) > storm.asked // 4
    assert set(bench.served) == set(PLANS)


DEVICES = {
    "a": ("g0",),
    "b": ("g0",),
    "c": ("g0", "g1"),
    "d": ("g1",),
    "e": ("g2",),
    "f": ("g1", "g2"),
}


def never_together(bench: Bench) -> None:
    """Models that share a device are never resident together, nor one that loads and another."""
    there = (Residency.READY, Residency.DRAINING, Residency.LOADING, Residency.UNLOADING)
    taken: dict[str, str] = {}
    for record in bench.fleet:
        if record.state not in there or (
            record.state is Residency.UNLOADING and record.kept is not None
        ):
            continue
        for device in record.devices:
            assert device not in taken, f"{record.name} and {taken[device]} on {device}"
            taken[device] = record.name
        if bench.traffic.in_flight(record.name):
            assert record.is_resident


@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_taking_turns_never_puts_two_on_a_device(seed: int) -> None:
    rng = random.Random(seed)
    bench = taking_turns(DEVICES, ("a", "d", "e"))
    bench.traffic.slots = 2
    asked = left = 0
    for _ in range(1000):
        event = rng.random()
        busy = [name for name, count in bench.traffic.running.items() if count]
        waiting = [name for name, queue in bench.traffic.arrivals.items() if queue]
        if event < 0.3:
            asked += 1
            bench.ask(rng.choice(list(DEVICES)))
        elif event < 0.55 and busy:
            bench.end(rng.choice(busy))
        elif event < 0.85 and bench.operations:
            error = "it broke" if rng.random() < 0.1 else ""
            bench.finish(rng.choice(bench.operations).model, error=error)
        elif event < 0.88 and waiting:
            left += 1
            bench.leave(rng.choice(waiting))
        elif event < 0.9:
            unload(bench, rng.choice(list(DEVICES)))
        else:
            bench.passes(rng.choice([0.01, 0.25, 10.0]))
        never_together(bench)
    for _ in range(2000):
        if not (any(bench.traffic.arrivals.values()) or bench.coordinator.arriving):
            break
        bench.finish_all()
        for name, count in dict(bench.traffic.running).items():
            bench.end(*[name] * count)
        bench.passes(0.25)
        never_together(bench)
    assert not bench.coordinator.arriving
    assert len(bench.served) + len(bench.refused) + left == asked
