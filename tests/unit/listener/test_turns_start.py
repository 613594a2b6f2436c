"""The start of models that take turns, on a device that is nearly full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from luce.errors import WorkerStartError
from luce.listener.residency import Turns
from luce.listener.turns_start import start_turns
from luce.placement.coordinator import Coordinator
from luce.placement.effects import CoordinatorOptions
from luce.placement.residency import Depth, ModelRecord, Outcome
from luce.placement.turns import DeviceTurns, TurnOptions

DEVICES = {"a": "g0", "b": "g0", "c": "g0", "d": "g1", "e": "g1"}
CAPACITY, STEPS = 100, 15


class FakeResidents:
    """A device on which every parked model keeps its captured steps until it is asked again."""

    def __init__(self, fault: str = "") -> None:
        self.log: list[str] = []
        self.fleet: Any = None
        self._kept: dict[str, int] = {}
        self._fault = fault

    async def evict_now(self, model: str, depth: Depth) -> Outcome:
        self.log.append(f"{model}:{depth}")
        is_again = model in self._kept
        self._kept[model] = 0 if is_again else STEPS
        return Outcome(
            retained_bytes=self._kept[model], host_bytes=7, error=self._fault if is_again else ""
        )

    async def free(self, model: str) -> dict[str, int | None]:
        near = [each for each in self._kept if DEVICES[each] == DEVICES[model]]
        return {DEVICES[model]: CAPACITY - sum(self._kept[each] for each in near), "?": None}

    def publish(self) -> None:
        """Nobody listens."""


def start(residents: FakeResidents) -> Coordinator:
    rule = DeviceTurns(TurnOptions(host_bytes=1000))
    traffic: Any = SimpleNamespace(waiting_for=lambda _: 0)
    records = [
        ModelRecord(name=name, devices=(device,), plan={device: {"weights": 60, "kv": 20}})
        for name, device in DEVICES.items()
    ]
    each: Any = residents
    coordinator = Coordinator(records, rule, traffic, each, CoordinatorOptions())
    supervisors: Any = [
        SimpleNamespace(
            handle=SimpleNamespace(
                name=name, ready=SimpleNamespace(weights_bytes=7), freeze_layout=lambda: None
            )
        )
        for name in DEVICES
    ]

    async def load(supervisor: Any) -> None:
        residents.log.append(supervisor.handle.name)

    anyio.run(start_turns, Turns(rule, coordinator, each, each), supervisors, load)
    return coordinator


def test_who_was_parked_keeps_less_if_the_next_does_not_fit() -> None:
    """Where there is room it keeps all it may."""
    residents = FakeResidents()
    fleet = start(residents).fleet
    parked = ["b", "b:host", "c", "c:host", "e", "e:host"]
    assert residents.log == [*parked, "b:host", "c:host", "a", "d"]
    kept = {name: fleet[name].kept for name in "bce"}
    assert {name: each.nbytes for name, each in kept.items() if each} == {"b": 0, "c": 0, "e": 15}
    assert [fleet[name].host_bytes for name in "bce"] == [7, 7, 7]
    assert [record.name for record in fleet if record.is_resident] == ["a", "d"]


def test_who_does_not_give_it_up_ends_the_start() -> None:
    with pytest.raises(WorkerStartError, match="b cannot take turns on its device: busy"):
        start(FakeResidents(fault="busy"))
