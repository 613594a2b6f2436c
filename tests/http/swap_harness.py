"""A listener whose models take turns on devices, over real sockets, with scripted workers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Self

from http_harness import CHAT, ByteText, FakeModel, Harness, Rules, chat_body, eventually

from luce.listener.device_watch import DeviceWatch
from luce.listener.residency import Turns
from luce.listener.residents import Residents
from luce.listener.turns_start import start_turns
from luce.placement.coordinator import Coordinator
from luce.placement.effects import CoordinatorOptions
from luce.placement.residency import ModelRecord
from luce.placement.turns import DeviceTurns, TurnOptions
from luce.protocol.messages import LoadSpec
from luce.routing.policy import ByName, RoutePolicy, UnknownModel
from luce.testing.fake_script import FakeScript
from luce.testing.fake_worker import FakeWorker
from luce.testing.thread_launcher import ThreadLauncher
from luce.workers.supervisor import Backoff, Supervisor

NAMES = ("big", "small", "third")


@dataclass(kw_only=True)
class SwapRules(Rules):
    """Settings of a swapping harness: all models on one device unless `devices` says otherwise."""

    devices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    turns: TurnOptions = field(default_factory=lambda: TurnOptions(linger_s=0.0))
    coordinator: CoordinatorOptions = field(
        default_factory=lambda: CoordinatorOptions(memory_patience_s=0.2)
    )
    unknown: UnknownModel = "reject"


class SwapHarness(Harness):
    """Use as an async context manager; every model has been started when it is entered, unless
    it is not to wait for that: then call `ready`."""

    rules: SwapRules

    def __init__(
        self, *scripts: FakeScript, rules: SwapRules | None = None, wait_ready: bool = True
    ) -> None:
        super().__init__(*scripts, rules=rules or SwapRules(), wait_ready=wait_ready)
        self._workers = {
            NAMES[place]: FakeWorker(script) for place, script in enumerate(self._scripts)
        }
        self.launcher = ThreadLauncher(self._workers)
        self.supervisors: dict[str, Supervisor] = {}

    def policy(self, names: list[str]) -> RoutePolicy:
        return ByName(names, self.rules.unknown)

    def _fake_model(self, index: int) -> FakeModel:
        name = NAMES[index]
        supervisor = Supervisor(
            LoadSpec(name=name, path="fake.gguf"), self.launcher, backoff=Backoff(0.05, 0.1)
        )
        self.supervisors[name] = supervisor
        return FakeModel(name, self._workers[name], supervisor.handle, ByteText())

    async def connect(self, model: FakeModel) -> None:
        """Processes are started by the supervisors."""

    async def ready(self) -> None:
        """Start everything the way a server does."""
        devices = {name: self.rules.devices.get(name, ("cpu:0",)) for name in self.supervisors}
        rule = DeviceTurns(self.rules.turns)
        watch = DeviceWatch(dict.fromkeys(devices, ()))
        residents = Residents(self.supervisors, self.served, self.router, watch)
        self.coordinator = Coordinator(
            [ModelRecord(name=name, devices=devices[name]) for name in devices],
            rule,
            self.router,
            residents,
            self.rules.coordinator,
            clock_s=self.rules.clock_s,
        )
        residents.attach(self.coordinator)
        self.residents = residents
        turns = Turns(rule, self.coordinator, residents, watch)
        await start_turns(turns, list(self.supervisors.values()), self._start)
        if self.rules.unknown == "primary":
            self.served.unknown_model = NAMES[0]
        self.served.take_turns(self.coordinator)
        self.coordinator.open()

    async def _start(self, supervisor: Supervisor) -> None:
        supervisor.start()
        await supervisor.wait_first_load()
        name = supervisor.handle.name
        self.served.set_text(name, next(m.text for m in self.models if m.name == name))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            self.router.tick()
            if self.served.coordinator is not None:
                self.served.coordinator.advance()

    async def __aenter__(self) -> Self:
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        self._tick_task.cancel()
        self.coordinator.shut_down()
        self.http.cut_connections()
        await self._http_task
        await asyncio.gather(*(s.stop(0) for s in self.supervisors.values()))
        await self.residents.close()
        for worker in self._workers.values():
            await asyncio.to_thread(worker.close)
        self._executor.shutdown()
        self._sock.close()

    # --- what tests ask ----------------------------------------------------------------------

    def worker(self, name: str) -> FakeWorker:
        return self._workers[name]

    async def named(self, model: str | None, text: str = "hello", **fields: Any) -> Any:
        """One chat request for a model."""
        return await self.client.post(CHAT, json=chat_body(text, model=model, **fields))

    def asking(self, model: str | None, text: str = "hello", **fields: Any) -> asyncio.Task[Any]:
        """The same, under way."""
        return asyncio.create_task(self.named(model, text, **fields))

    async def status(self) -> Any:
        """Answered by the listener alone: it does not wait for anything that a test holds."""
        async with asyncio.timeout(60):
            return (await self.client.get("/status/json")).json()

    async def status_of(self, name: str) -> Any:
        return next(m for m in (await self.status())["models"] if m["id"] == name)

    def state(self, name: str) -> str:
        return self.coordinator.fleet[name].state.value

    async def reaches(self, name: str, state: str) -> None:
        await eventually(lambda: self.state(name) == state)

    async def cooled_down(self, name: str) -> None:
        """The pause of a model that failed is over."""
        assert self.state(name) == "cooldown"
        self.coordinator.fleet[name].retry_at_s = 0.0
        await eventually(lambda: self.state(name) != "cooldown")

    def swaps(self) -> int:
        return sum(record.num_loads for record in self.coordinator.fleet)

    def transitions(self, name: str) -> list[tuple[str, str | None]]:
        return [(t.op, t.level) for t in self.worker(name).transitions]
