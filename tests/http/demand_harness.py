"""A listener whose models load on demand, over real sockets, with scripted workers and a fake
device `g0`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swap_harness import SwapHarness, SwapRules

from luce.listener.device_watch import DeviceWatch
from luce.listener.residents import Residents
from luce.placement.byte_room import ByteOptions, ByteRoom
from luce.placement.coordinator import Coordinator
from luce.placement.devices import MemorySample
from luce.placement.effects import CoordinatorOptions
from luce.placement.ledger import Ledger, Pool
from luce.placement.residency import Cooldown, ModelRecord
from luce.placement.samples import Samples
from luce.testing.fake_script import FakeScript

TOTAL = 100


@dataclass
class DeviceProbe:
    """What the device says is free, as a test sets it."""

    free: int | None = TOTAL

    def sample(self, device_uuid: str) -> MemorySample | None:
        return None if self.free is None else MemorySample(self.free, 0)


@dataclass(kw_only=True)
class DemandRules(SwapRules):
    """Settings; every model takes 60 of 100 bytes unless `plans` says otherwise."""

    plans: Mapping[str, int] = field(default_factory=dict)
    bytes: ByteOptions = field(default_factory=ByteOptions)
    pinned: tuple[str, ...] = ()
    coordinator: CoordinatorOptions = field(
        default_factory=lambda: CoordinatorOptions(
            restores=False, abandons=True, cooldown=Cooldown(30.0, 300.0), memory_patience_s=0.1
        )
    )


class DemandHarness(SwapHarness):
    """Use as an async context manager; nothing is loaded when it is entered."""

    rules: DemandRules

    def __init__(self, *scripts: FakeScript, rules: DemandRules | None = None) -> None:
        super().__init__(*scripts, rules=rules or DemandRules())
        self.probe = DeviceProbe()

    async def ready(self) -> None:
        """Know the models' texts and limits, and decide from now on."""
        plans = {name: {"g0": self.rules.plans.get(name, 60)} for name in self.supervisors}
        samples = Samples()
        self.ledger = Ledger([Pool("g0", ("g0",), TOTAL, 0)], plans, samples, self.rules.pinned)
        watch = DeviceWatch(dict.fromkeys(plans, ("g0",)), self.probe, samples)
        self.residents = Residents(self.supervisors, self.served, self.router, watch)
        self.coordinator = Coordinator(
            [
                ModelRecord(name=name, devices=("g0",), is_pinned=name in self.rules.pinned)
                for name in plans
            ],
            ByteRoom(self.ledger, samples, self.rules.bytes),
            self.router,
            self.residents,
            self.rules.coordinator,
            clock_s=self.rules.clock_s,
        )
        self.residents.attach(self.coordinator)
        for model in self.models:
            self.served[model.name].planned = self.worker(model.name).script.limits
            self.served.set_text(model.name, model.text)
        self.served.take_turns(self.coordinator)
        self.coordinator.open()
