"""Evict and reinstate as the loop hears of them; the engine is scripted."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from luce.errors import PlacementError
from luce.kv.manager import KVManager
from luce.protocol import messages as wire
from luce.protocol.sampling import SamplingParams
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.plan import StepPlan, StepResult
from luce.scheduler.scheduler import Scheduler
from luce.testing.byte_tokenizer import pack_prompt
from luce.worker.loop import WorkerLoop
from luce.worker.ports import Incoming, LoopOptions


@dataclass(frozen=True)
class Kept:
    device_bytes: int
    host_bytes: int


class Engine:
    """Knows whether it may be asked to step."""

    def __init__(self) -> None:
        self.is_here = True
        self.errors: list[Exception] = []
        self.levels: list[str] = []
        self.cached_when_saved: list[int] = []

    def step(self, plan: StepPlan) -> Engine:
        assert self.is_here
        self._plan = plan
        return self

    def result(self) -> StepResult:
        return StepResult(self._plan.step, tuple(7 for each in self._plan.items if each.sample))

    def expert_loads(self) -> None:
        return None

    def evict(self, level: str, save: Callable[[], None]) -> Kept:
        if self.errors:
            raise self.errors.pop(0)
        save()
        self.levels.append(level)
        self.is_here = False
        return Kept(11, 22)

    def reinstate(self) -> int:
        if self.errors:
            raise self.errors.pop(0)
        self.is_here = True
        return 33


class Bench:
    def __init__(self) -> None:
        self.engine = Engine()
        self.kv = KVManager(20, 4)
        limits = SchedulerLimits(max_rows=2, max_ctx=60, chunk=32)
        self.now_ns = 0
        self.scheduler = Scheduler(self.kv, limits, lambda: 1, lambda: 5)
        self.sent: list[wire.ToListener] = []
        self.waiting: list[Incoming] = []
        options = LoopOptions(256, 0, self.clock_ns)
        self.loop = WorkerLoop(self.engine, self.scheduler, self, options)  # type: ignore[arg-type]

    def clock_ns(self) -> int:
        self.now_ns += 2_000_000
        return self.now_ns

    def receive(self, *, wait: bool) -> list[Incoming]:
        messages, self.waiting = self.waiting, []
        return messages or [wire.Shutdown(0.0)]

    def post(self, message: Incoming) -> None:
        self.waiting.append(message)

    def send(self, message: wire.ToListener) -> None:
        self.sent.append(message)

    def run(self, *turns: wire.ToWorker) -> list[wire.ToListener]:
        """Each message with a turn of the loop of its own."""
        queue = list(turns)
        self.receive = lambda *, wait: [queue.pop(0)] if queue else [wire.Shutdown(0.0)]  # type: ignore[method-assign]
        self.loop.run()
        return [each for each in self.sent if not isinstance(each, wire.Stats)]

    def done(self) -> list[wire.ControlDone]:
        return [each for each in self.sent if isinstance(each, wire.ControlDone)]


@pytest.fixture
def bench():
    yield Bench()
    gc.unfreeze()


def submit(request_id: str, num_prompt: int = 9, max_tokens: int = 1) -> wire.Submit:
    prompt = pack_prompt(range(num_prompt))
    return wire.Submit(request_id, prompt, SamplingParams(max_tokens=max_tokens))


def evict(op_id: int = 1, level: wire.EvictionLevel | None = "host") -> wire.Control:
    return wire.Control(op_id, "evict", level)


REINSTATE = wire.Control(2, "reinstate")


def test_an_answer_says_what_is_kept_and_how_long_it_took(bench: Bench) -> None:
    bench.run(submit("a"), evict())
    assert bench.done() == [
        wire.ControlDone(1, retained_bytes=11, host_bytes=22, duration_ms=2, snapshots_lost=1)
    ]
    assert bench.kv.stats().cached_blocks == 0


@pytest.mark.parametrize(
    ("level", "asked"), [(None, "cold"), ("cold", "cold"), ("host", "host"), ("warm", "warm")]
)
def test_levels(bench: Bench, level: wire.EvictionLevel | None, asked: str) -> None:
    bench.run(evict(level=level))
    assert bench.engine.levels == [asked]


def test_requests_are_refused_until_it_is_back(bench: Bench) -> None:
    sent = bench.run(evict(), submit("no"), REINSTATE, submit("yes"))
    assert wire.Refused("no", "draining") in sent
    assert wire.Admitted("yes", 0) in sent


def test_an_evicted_model_saves_nothing_again(bench: Bench) -> None:
    bench.run(submit("a"), evict(1), evict(2, "cold"))
    assert [done.snapshots_lost for done in bench.done()] == [1, 0]
    assert bench.engine.levels == ["host", "cold"]


def test_coming_back_says_what_of_the_host_stays_taken(bench: Bench) -> None:
    bench.run(REINSTATE, evict(), REINSTATE, REINSTATE)
    assert [done.host_bytes for done in bench.done()] == [0, 22, 33, 33]


def test_reinstating_what_is_there(bench: Bench) -> None:
    bench.engine.errors.append(PlacementError("must not be asked"))
    bench.run(REINSTATE)
    assert bench.done()[0].error == ""


def test_a_model_that_holds_a_request_stays(bench: Bench) -> None:
    bench.run(submit("a", max_tokens=9), evict())
    assert bench.done()[0].error.startswith("rejected")
    assert bench.engine.levels == []


def test_an_eviction_that_cannot_be_touches_nothing(bench: Bench) -> None:
    bench.engine.errors.append(PlacementError("no host memory"))
    sent = bench.run(submit("a"), evict(), submit("b"))
    assert bench.done()[0].error == "no host memory"
    # Its prefixes are still found.
    assert wire.Admitted("b", 8) in sent


def test_a_reinstatement_that_fails_can_be_tried_again(bench: Bench) -> None:
    bench.run(evict())
    bench.loop._stop_at_ns = None
    bench.loop._admission._is_draining = False
    bench.engine.errors.append(PlacementError("no room"))
    sent = bench.run(REINSTATE, submit("no"), wire.Control(3, "reinstate"), submit("yes"))
    assert [done.error for done in bench.done()] == ["", "no room", ""]
    assert wire.Refused("no", "draining") in sent
    assert wire.Admitted("yes", 0) in sent


def test_a_bug_answers_the_operation_and_ends_the_worker(bench: Bench) -> None:
    bench.engine.errors.append(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        bench.run(evict())
    assert bench.done() == [
        wire.ControlDone(1, "The model's process failed; its log has the details.")
    ]


def test_memory_of_the_load_is_seen_by_the_collector_again(bench: Bench) -> None:
    gc.collect()
    gc.freeze()
    num_frozen = gc.get_freeze_count()
    bench.run(evict(level="host"))
    assert gc.get_freeze_count() == num_frozen
    bench.loop._stop_at_ns = None
    bench.run(evict(level="cold"))
    assert gc.get_freeze_count() == 0


def test_and_not_when_it_is_back(bench: Bench) -> None:
    gc.unfreeze()
    bench.run(evict(level="cold"), REINSTATE)
    assert gc.get_freeze_count() > 0
