from __future__ import annotations

import queue
import struct
import threading
from collections.abc import Callable

import numpy as np
import pytest

from luce.errors import DeviceOutOfMemory, InternalError, InvalidGrammar, PlacementError
from luce.kv.manager import KVManager
from luce.protocol import messages as wire
from luce.protocol.sampling import GrammarSpec, SamplingParams
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.plan import FAILED_TOKEN, StepPlan, StepResult
from luce.scheduler.scheduler import Scheduler
from luce.testing.byte_tokenizer import pack_prompt
from luce.worker.loop import MAX_FAILED_STEPS, STATS_INTERVAL_NS, WorkerLoop
from luce.worker.ports import Incoming, LoopOptions

VOCAB = 256
STOP = 7


class ScriptedStep:
    def __init__(self, engine: ScriptedEngine, plan: StepPlan) -> None:
        self._engine = engine
        self._plan = plan

    def result(self) -> StepResult:
        self._engine.finished.append(self._plan.step)
        error = self._engine.result_errors.pop(self._plan.step, None)
        if error is not None:
            raise error
        token_ids = [
            FAILED_TOKEN
            if item.row == self._engine.broken_row
            else self._engine.token(item.output_index)
            for item in self._plan.items
            if item.sample
        ]
        return StepResult(self._plan.step, tuple(token_ids))


class ScriptedEngine:
    """Samples 100, 101, ... in each sequence, or `STOP` at `stop_at`."""

    def __init__(self) -> None:
        self.started: list[StepPlan] = []
        self.finished: list[int] = []
        self.step_errors: dict[int, Exception] = {}
        self.result_errors: dict[int, Exception] = {}
        self.stop_at: int | None = None
        self.broken_row: int | None = None
        self.most_under_way = 0
        self.on_step: Callable[[StepPlan], None] = lambda plan: None
        self.vocabulary: tuple = ()
        self.calls: list[str] = []
        self.loads: np.ndarray | None = None
        self.num_looks = 0
        self.begun = threading.Event()
        self.compiling = threading.Event()
        self.compiling.set()

    def token(self, output_index: int) -> int:
        return STOP if output_index == self.stop_at else 100 + output_index

    def use_vocabulary(self, *vocabulary) -> None:
        self.vocabulary = vocabulary
        self.calls.append("vocabulary")

    def check_grammar(self, grammar: GrammarSpec) -> GrammarSpec:
        self.calls.append(grammar.lark)
        self.begun.set()
        assert self.compiling.wait(60)
        if grammar.lark == "crash":
            raise RuntimeError("out of luck")
        if "bad" in grammar.lark:
            raise InvalidGrammar("that grammar is bad")
        return GrammarSpec(f"{grammar.lark}, compiled")

    def expert_loads(self) -> np.ndarray | None:
        self.num_looks += 1
        return self.loads

    def step(self, plan: StepPlan) -> ScriptedStep:
        self.started.append(plan)
        self.on_step(plan)
        error = self.step_errors.pop(plan.step, None)
        if error is not None:
            raise error
        self.most_under_way = max(self.most_under_way, len(self.started) - len(self.finished))
        return ScriptedStep(self, plan)


class ScriptedPost:
    """An inbox filled by the test; when the loop would sleep, `on_idle` says what comes."""

    def __init__(self) -> None:
        self.inbox: list[wire.ToWorker] = []
        self.sent: list[wire.ToListener] = []
        self.sleeps = 0
        self.posted: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self.awaited = 0
        """Messages of the loop's own threads that are still to come."""
        self.on_idle: Callable[[], None] = lambda: self.inbox.append(wire.Shutdown(0.0))

    def receive(self, *, wait: bool) -> list[wire.ToWorker]:
        if wait and not self.inbox and self.awaited:
            self.inbox.append(self.posted.get(timeout=60))
            self.awaited -= 1
        if wait and not self.inbox:
            self.sleeps += 1
            self.on_idle()
            assert self.inbox, "the loop would sleep for ever"
        messages, self.inbox = self.inbox, []
        return messages

    def post(self, message: Incoming) -> None:
        self.posted.put(message)

    def send(self, message: wire.ToListener) -> None:
        self.sent.append(message)

    def of(self, kind: type) -> list:
        return [message for message in self.sent if isinstance(message, kind)]

    def tokens(self, request_id: str) -> list[int]:
        deltas = [d for output in self.of(wire.StepOutput) for d in output.deltas]
        return [t for d in deltas if d.request_id == request_id for t in d.token_ids]

    def retired(self) -> dict[str, wire.Retired]:
        found = self.of(wire.Retired)
        assert len({m.request_id for m in found}) == len(found), "retired twice"
        return {m.request_id: m for m in found}


class Bench:
    def __init__(self, depth: int = 0, rows: int = 4, blocks: int = 33) -> None:
        self.now_ns = 1
        self.engine = ScriptedEngine()
        self.post = ScriptedPost()
        limits = SchedulerLimits(max_rows=rows, max_ctx=256, chunk=32)
        kv = KVManager(blocks, 16)
        self.scheduler = Scheduler(kv, limits, self.clock_ns, lambda: 5)
        options = LoopOptions(VOCAB, depth, self.clock_ns)
        self.loop = WorkerLoop(self.engine, self.scheduler, self.post, options)

    def clock_ns(self) -> int:
        return self.now_ns

    def submit(self, request_id: str, num_prompt: int = 4, **sampling) -> None:
        params = SamplingParams(**{"max_tokens": 3, "stop_token_ids": (STOP,), **sampling})
        prompt = pack_prompt(range(num_prompt))
        self.post.awaited += params.grammar is not None
        self.post.inbox.append(wire.Submit(request_id, prompt, params))

    def at_step(self, number: int, action: Callable[[], None]) -> None:
        self.engine.on_step = lambda plan: action() if plan.step == number else None

    def run(self) -> None:
        self.loop.run()
        assert not self.scheduler.has_work
        self.scheduler.check_integrity()


@pytest.fixture(params=[0, 1], ids=["depth0", "depth1"])
def bench(request) -> Bench:
    return Bench(request.param)


def test_a_request_is_admitted_answered_and_retired(bench: Bench):
    bench.submit("r1")
    bench.run()
    assert bench.post.sent[0] == wire.Admitted("r1", 0)
    assert bench.post.tokens("r1") == [100, 101, 102]
    retired = bench.post.retired()["r1"]
    assert retired.finish == "length"
    assert retired.usage == wire.Usage(prompt_tokens=4, cached_tokens=0, completion_tokens=3)
    assert retired.timings.admitted_ns == 1


def test_a_stop_token_ends_the_text_before_it(bench: Bench):
    bench.engine.stop_at = 2
    bench.submit("r1", max_tokens=50)
    bench.run()
    assert bench.post.tokens("r1") == [100, 101]
    assert bench.post.retired()["r1"].finish == "stop"


def test_many_requests_share_steps_and_one_frame_a_step(bench: Bench):
    for i in range(4):
        bench.submit(f"r{i}", num_prompt=4, max_tokens=5)
    bench.run()
    outputs = bench.post.of(wire.StepOutput)
    assert len({output.step for output in outputs}) == len(outputs)
    assert max(len(output.deltas) for output in outputs) == 4
    assert all(bench.post.tokens(f"r{i}") == [100, 101, 102, 103, 104] for i in range(4))


def test_depth_decides_how_many_steps_are_under_way():
    for depth in (0, 1):
        bench = Bench(depth)
        bench.submit("r1", max_tokens=10)
        bench.run()
        assert bench.engine.most_under_way == depth + 1
        assert bench.engine.finished == [plan.step for plan in bench.engine.started]


@pytest.mark.parametrize(("depth", "expected"), [(0, [4, 4]), (1, [2, 4])])
def test_an_idle_device_starts_once_prompts_fill_a_step(depth: int, expected: list[int]):
    bench = Bench(depth)
    answered: list[int] = []
    bench.engine.on_step = lambda plan: answered.append(len(bench.post.of(wire.Admitted)))
    for i in range(4):
        bench.submit(f"r{i}", num_prompt=16)
    bench.run()
    assert answered[:2] == expected
    assert all(bench.post.tokens(f"r{i}") == [100, 101, 102] for i in range(4))


def test_every_delta_comes_before_its_retirement(bench: Bench):
    bench.submit("r1")
    bench.submit("r2", max_tokens=6)
    bench.run()
    for request_id in ("r1", "r2"):
        at = [
            i
            for i, m in enumerate(bench.post.sent)
            if isinstance(m, wire.StepOutput) and request_id in {d.request_id for d in m.deltas}
        ]
        assert max(at) < bench.post.sent.index(bench.post.retired()[request_id])


def test_rows_taken_is_a_refusal_that_may_be_tried_again():
    bench = Bench(rows=1)
    bench.submit("r1")
    bench.submit("r2")
    bench.run()
    (refused,) = bench.post.of(wire.Refused)
    assert (refused.request_id, refused.reason, refused.error) == ("r2", "capacity", "")
    assert list(bench.post.retired()) == ["r1"]


def test_a_prompt_that_never_fits_says_both_numbers(bench: Bench):
    bench.submit("r1", num_prompt=256)
    bench.run()
    (refused,) = bench.post.of(wire.Refused)
    assert (refused.reason, refused.error) == ("never_fits", "ContextLengthExceeded")
    assert "256" in refused.detail
    assert "255" in refused.detail


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        (pack_prompt([1, VOCAB]), "256"),
        (pack_prompt([-1]), "-1"),
        (b"\1\0\0", "bytes"),
        (b"", "empty"),
    ],
)
def test_a_prompt_the_engine_could_not_index_is_refused(prompt, word):
    bench = Bench()
    bench.post.inbox.append(wire.Submit("r1", prompt, SamplingParams(max_tokens=1)))
    bench.submit("r2")
    bench.run()
    (refused,) = bench.post.of(wire.Refused)
    assert (refused.reason, refused.error) == ("failed", "InvalidRequest")
    assert word in refused.detail
    assert bench.post.tokens("r2") == [100, 101, 102]


@pytest.mark.parametrize("bias", [{VOCAB: 1.0}, {-1: 1.0}, {3: float("nan")}, {3: float("inf")}])
def test_a_logit_bias_the_engine_could_not_use_is_refused(bias):
    bench = Bench()
    bench.submit("r1", logit_bias=bias)
    bench.run()
    (refused,) = bench.post.of(wire.Refused)
    assert refused.error == "InvalidRequest"


def test_cancel_stops_within_one_step_and_keeps_neighbours():
    for depth in (0, 1):
        bench = Bench(depth)
        bench.submit("r1", max_tokens=50)
        bench.submit("r2", max_tokens=8)
        bench.at_step(3, lambda b=bench: b.post.inbox.append(wire.Cancel("r1", "client_gone")))
        bench.run()
        rows = [{item.row for item in plan.items} for plan in bench.engine.started]
        assert bench.post.retired()["r1"].finish == "cancelled"
        assert all(len(items) == 2 for items in rows[:3])
        assert all(len(items) == 1 for items in rows[3 + depth :])
        assert bench.post.tokens("r2") == list(range(100, 108))


def test_cancel_of_the_only_request_retires_it_and_the_loop_sleeps(bench: Bench):
    bench.submit("r1", max_tokens=50)
    bench.at_step(2, lambda: bench.post.inbox.append(wire.Cancel("r1", "client_gone")))
    bench.run()
    assert bench.post.retired()["r1"].finish == "cancelled"
    assert bench.post.sleeps == 1


def test_an_unknown_cancel_is_ignored(bench: Bench):
    bench.post.inbox.append(wire.Cancel("nobody", "client_gone"))
    bench.submit("r1")
    bench.run()
    assert list(bench.post.retired()) == ["r1"]


@pytest.mark.parametrize("where", ["step_errors", "result_errors"])
def test_a_typed_step_error_fails_what_runs_once(bench: Bench, where: str):
    getattr(bench.engine, where)[2] = DeviceOutOfMemory("The device is full.")
    bench.submit("r1", max_tokens=9)
    bench.submit("r2", max_tokens=9)
    bench.run()
    retired = bench.post.retired()
    assert sorted(retired) == ["r1", "r2"]
    for message in retired.values():
        assert (message.finish, message.error) == ("error", "DeviceOutOfMemory")
        assert message.detail == "The device is full."


def full_for_prompts(bench: Bench, least: int, where: str) -> None:
    """The device runs out of memory in every step with so many tokens."""

    def on_step(plan: StepPlan) -> None:
        if plan.num_tokens >= least:
            getattr(bench.engine, where)[plan.step] = DeviceOutOfMemory("The device is full.")

    bench.engine.on_step = on_step


@pytest.mark.parametrize("where", ["step_errors", "result_errors"])
def test_b45_a_prompt_there_is_no_memory_for_fails_alone(bench: Bench, where: str):
    full_for_prompts(bench, 30, where)
    bench.submit("r1", max_tokens=9)
    bench.submit("r2", max_tokens=9)
    started = bench.engine.on_step

    def on_step(plan: StepPlan) -> None:
        if plan.step == 4:
            bench.submit("large", num_prompt=30, max_tokens=9)
            bench.submit("r3", max_tokens=9)
        started(plan)

    bench.engine.on_step = on_step
    bench.run()
    retired = bench.post.retired()
    assert (retired["large"].error, retired["large"].detail) == (
        "DeviceOutOfMemory",
        "The device is full.",
    )
    for name in ("r1", "r2", "r3"):
        assert (retired[name].finish, bench.post.tokens(name)) == ("length", [*range(100, 109)])


def test_decoders_that_lack_memory_fail_together(bench: Bench):
    bench.submit("r1", max_tokens=9)
    bench.submit("r2", max_tokens=9)
    bench.engine.result_errors[5] = DeviceOutOfMemory("The device is full.")
    bench.run()
    assert {m.error for m in bench.post.retired().values()} == {"DeviceOutOfMemory"}


def test_who_is_spared_once_is_not_spared_again(bench: Bench):
    """Else a device that never has memory would be asked for each sequence in turn."""
    full_for_prompts(bench, 1, "result_errors")
    for name in ("r1", "r2", "r3", "r4"):
        bench.submit(name)
    bench.run()
    assert {m.error for m in bench.post.retired().values()} == {"DeviceOutOfMemory"}
    assert len(bench.engine.started) <= 4


def test_a_failed_row_ends_its_sequence_and_no_other(bench: Bench, caplog):
    bench.engine.broken_row = 0
    bench.submit("sick", max_tokens=9)
    bench.submit("healthy", max_tokens=9)
    bench.run()
    retired = bench.post.retired()
    assert (retired["sick"].finish, retired["sick"].error) == ("error", "InternalError")
    assert "not finite numbers" in retired["sick"].detail
    assert bench.post.tokens("sick") == []
    assert retired["healthy"].finish == "length"
    assert bench.post.tokens("healthy") == list(range(100, 109))
    (record,) = [r for r in caplog.records if r.getMessage() == "sequence failed"]
    assert record.request_id == "sick"


def test_failed_rows_are_no_failed_steps(bench: Bench):
    bench.engine.broken_row = 0
    names = iter([f"r{i}" for i in range(3 * MAX_FAILED_STEPS)])

    def on_idle() -> None:
        name = next(names, None)
        if name is None:
            bench.post.inbox.append(wire.Shutdown(0.0))
        else:
            bench.submit(name)

    bench.post.on_idle = on_idle
    bench.run()
    assert len(bench.post.retired()) == 3 * MAX_FAILED_STEPS


def test_after_a_failed_step_new_requests_are_served(bench: Bench):
    bench.engine.result_errors[1] = InternalError("The step failed.")
    bench.submit("r1")
    later = ["r2"]

    def on_idle() -> None:
        if later:
            bench.submit(later.pop())
        else:
            bench.post.inbox.append(wire.Shutdown(0.0))

    bench.post.on_idle = on_idle
    bench.run()
    assert bench.post.retired()["r1"].error == "InternalError"
    assert bench.post.tokens("r2") == [100, 101, 102]


def test_a_step_behind_a_failed_one_is_waited_for_before_blocks_are_freed():
    bench = Bench(depth=1)
    bench.engine.result_errors[2] = InternalError("The step failed.")
    bench.engine.result_errors[3] = InternalError("So did the next.")
    bench.submit("r1", max_tokens=9)
    bench.run()
    assert bench.engine.finished == [1, 2, 3]
    retired = bench.post.retired()["r1"]
    assert retired.error == "InternalError"
    assert "step failed" not in retired.detail


def test_a_device_that_never_recovers_ends_the_worker():
    bench = Bench()
    for step in range(1, 20):
        bench.engine.step_errors[step] = InternalError("device-side assert")
    names = (f"r{i}" for i in range(20))
    bench.post.on_idle = lambda: bench.submit(next(names))
    with pytest.raises(InternalError, match="device-side"):
        bench.loop.run()
    assert len(bench.post.retired()) == MAX_FAILED_STEPS


def test_failures_with_good_steps_between_do_not_add_up():
    bench = Bench()
    for step in range(2, 40, 3):
        bench.engine.result_errors[step] = InternalError("now and then")
    names = iter([f"r{i}" for i in range(9)])

    def on_idle() -> None:
        name = next(names, None)
        if name is None:
            bench.post.inbox.append(wire.Shutdown(0.0))
        else:
            bench.submit(name)

    bench.post.on_idle = on_idle
    bench.run()
    assert len(bench.post.retired()) == 9


@pytest.mark.parametrize("error", [ValueError("a bug"), PlacementError("not ours to handle")])
def test_an_unexpected_error_leaves_the_loop(bench: Bench, error):
    bench.engine.result_errors[2] = error
    bench.submit("r1", max_tokens=9)
    with pytest.raises(type(error)):
        bench.loop.run()


def test_the_idle_loop_sleeps_and_never_spins(bench: Bench):
    later = ["r2", "r1"]

    def on_idle() -> None:
        if later:
            bench.submit(later.pop())
        else:
            bench.post.inbox.append(wire.Shutdown(0.0))

    bench.post.on_idle = on_idle
    bench.run()
    assert bench.post.sleeps == 3
    assert list(bench.post.retired()) == ["r1", "r2"]


def test_statistics_come_when_work_runs_out_and_at_most_four_times_a_second(bench: Bench):
    def tick(plan: StepPlan) -> None:
        bench.now_ns += STATS_INTERVAL_NS // 5

    bench.engine.on_step = tick
    bench.submit("r1", max_tokens=41)
    bench.run()
    stats = bench.post.of(wire.Stats)
    steps = len(bench.engine.started)
    assert steps // 5 - 1 <= len(stats) <= steps // 5 + 2
    last = stats[-1].stats
    assert (last.running, last.generated_tokens, last.prompt_tokens) == (0, 41, 4)
    assert last.free_blocks + last.cached_blocks == last.total_blocks == 32
    assert last.rss_bytes > 0


def test_drain_refuses_new_and_finishes_old(bench: Bench):
    bench.submit("r1")
    bench.at_step(1, lambda: bench.post.inbox.append(wire.Control(9, "drain")))
    asked = []

    def on_idle() -> None:
        if not asked:
            asked.append(1)
            bench.submit("r2")
        else:
            bench.post.inbox.append(wire.Shutdown(0.0))

    bench.post.on_idle = on_idle
    bench.run()
    assert bench.post.tokens("r1") == [100, 101, 102]
    assert bench.post.of(wire.ControlDone) == [wire.ControlDone(9)]
    assert [(m.request_id, m.reason) for m in bench.post.of(wire.Refused)] == [("r2", "draining")]


def test_check_is_answered_after_the_statistics(bench: Bench):
    bench.post.inbox.append(wire.Control(3, "check"))
    bench.run()
    assert [type(m) for m in bench.post.sent] == [wire.Stats, wire.ControlDone]
    assert bench.post.sent[-1] == wire.ControlDone(3)


def test_a_broken_invariant_is_answered_and_ends_the_worker(bench: Bench, monkeypatch):
    def broken() -> None:
        raise AssertionError("block 3 is held twice")

    monkeypatch.setattr(bench.scheduler, "check_integrity", broken)
    bench.post.inbox.append(wire.Control(3, "check"))
    with pytest.raises(AssertionError):
        bench.loop.run()
    (done,) = bench.post.of(wire.ControlDone)
    assert "block 3" in done.error


def test_the_invariants_are_checked_each_time_work_runs_out(bench: Bench, monkeypatch):
    checks = []
    monkeypatch.setattr(bench.scheduler, "check_integrity", lambda: checks.append(1))
    bench.submit("r1")
    bench.submit("r2")
    bench.loop.run()
    assert len(checks) == 1


def test_shutdown_waits_for_what_runs_within_its_grace(bench: Bench):
    bench.submit("r1", max_tokens=6)
    bench.at_step(2, lambda: bench.post.inbox.append(wire.Shutdown(10.0)))
    bench.run()
    assert bench.post.tokens("r1") == list(range(100, 106))
    assert bench.post.retired()["r1"].finish == "length"


def test_shutdown_cuts_what_outlives_its_grace(bench: Bench):
    def tick(plan: StepPlan) -> None:
        bench.now_ns += 10**9
        if plan.step == 2:
            bench.post.inbox.append(wire.Shutdown(3.0))

    bench.engine.on_step = tick
    bench.submit("r1", max_tokens=200)
    bench.run()
    retired = bench.post.retired()["r1"]
    assert (retired.finish, retired.error) == ("error", "ShuttingDown")
    assert 4 <= len(bench.engine.started) <= 7
    assert bench.engine.finished == [plan.step for plan in bench.engine.started]


def test_a_later_shutdown_can_only_shorten_the_grace(bench: Bench):
    def tick(plan: StepPlan) -> None:
        bench.now_ns += 10**9
        bench.post.inbox += {2: [wire.Shutdown(0.5)], 3: [wire.Shutdown(100.0)]}.get(plan.step, [])

    bench.engine.on_step = tick
    bench.submit("r1", max_tokens=200)
    bench.run()
    assert len(bench.engine.started) <= 4


def test_preemption_shows_in_no_stream():
    # Two sequences of up to 100 tokens in 8 usable blocks of 16.
    bench = Bench(depth=1, blocks=9)
    bench.submit("r1", num_prompt=20, max_tokens=80)
    bench.submit("r2", num_prompt=20, max_tokens=80)
    bench.run()
    assert bench.scheduler.stats().preemptions > 0
    for request_id in ("r1", "r2"):
        assert bench.post.tokens(request_id) == list(range(100, 180))
        assert bench.post.retired()[request_id].finish == "length"


# --- grammars --------------------------------------------------------------------------


def test_the_engine_learns_the_vocabulary_before_it_compiles(bench: Bench):
    bench.post.inbox.append(wire.Vocabulary([b"a", b"b"], [1], [0]))
    bench.submit("r1", grammar=GrammarSpec("good"))
    bench.run()
    assert bench.engine.calls == ["vocabulary", "good"]
    assert bench.engine.vocabulary == ([b"a", b"b"], [1], [0])
    assert bench.post.tokens("r1") == [100, 101, 102]


def test_a_grammar_that_does_not_compile_is_refused(bench: Bench):
    bench.submit("bad", grammar=GrammarSpec("bad"))
    bench.submit("good", grammar=GrammarSpec("good"))
    bench.run()
    refused = wire.Refused("bad", "failed", "InvalidGrammar", "that grammar is bad")
    assert bench.post.of(wire.Refused) == [refused]
    assert bench.post.tokens("good") == [100, 101, 102]


def test_a_sequence_comes_with_what_was_compiled_each_time_it_gets_a_row(bench: Bench):
    bench.submit("r1", grammar=GrammarSpec("good"))
    bench.submit("r2")
    bench.run()
    starts = [start for plan in bench.engine.started for start in plan.starts]
    grammars = [start.sampling.grammar for start in starts]
    assert sorted(grammars, key=str) == [GrammarSpec("good, compiled"), None]


def test_a_request_that_left_before_its_turn_is_not_compiled(bench: Bench):
    bench.engine.compiling.clear()
    bench.submit("r1", grammar=GrammarSpec("first"))
    bench.submit("r2", grammar=GrammarSpec("second"))
    bench.post.awaited -= 1
    bench.post.inbox.append(wire.Cancel("r2", "client_gone"))
    bench.submit("r3")
    bench.engine.on_step = lambda plan: bench.engine.compiling.set()
    bench.run()
    assert bench.engine.calls == ["first"]
    assert [refused.request_id for refused in bench.post.of(wire.Refused)] == ["r2"]
    assert sorted(message.request_id for message in bench.post.of(wire.Admitted)) == ["r1", "r3"]


def test_a_compiler_that_fails_costs_its_request_only(bench: Bench):
    bench.submit("r1", grammar=GrammarSpec("crash"))
    bench.submit("r2", grammar=GrammarSpec("good"))
    bench.run()
    [refused] = bench.post.of(wire.Refused)
    assert (refused.request_id, refused.error) == ("r1", "InternalError")
    assert bench.post.tokens("r2") == [100, 101, 102]


def test_the_others_go_on_while_a_grammar_compiles(bench: Bench):
    bench.engine.compiling.clear()
    bench.submit("slow", grammar=GrammarSpec("good"))
    bench.submit("quick")
    bench.engine.on_step = lambda plan: bench.engine.compiling.set() if plan.step == 3 else None
    bench.run()
    admitted = [message.request_id for message in bench.post.of(wire.Admitted)]
    assert admitted == ["quick", "slow"]
    assert bench.post.tokens("slow") == bench.post.tokens("quick") == [100, 101, 102]


def test_who_leaves_while_a_grammar_compiles_is_answered_once(bench: Bench):
    desk = bench.loop._grammars
    ask = desk.ask

    def ask_and_see_it_begun(submit: wire.Submit) -> None:
        ask(submit)
        assert bench.engine.begun.wait(60)

    desk.ask = ask_and_see_it_begun
    bench.engine.compiling.clear()
    bench.submit("r1", grammar=GrammarSpec("good"))
    bench.post.inbox.append(wire.Cancel("r1", "client_gone"))
    bench.submit("r2")
    bench.engine.on_step = lambda plan: bench.engine.compiling.set()
    bench.run()
    assert [refused.request_id for refused in bench.post.of(wire.Refused)] == ["r1"]
    assert [message.request_id for message in bench.post.of(wire.Admitted)] == ["r2"]


def test_a_shutdown_refuses_those_whose_grammars_compile(bench: Bench):
    bench.engine.compiling.clear()
    bench.submit("r1", grammar=GrammarSpec("good"))
    bench.post.inbox.append(wire.Shutdown(5.0))
    bench.submit("r2", grammar=GrammarSpec("good"))
    bench.loop._grammars.close = lambda: bench.engine.compiling.set()
    bench.run()
    refused = bench.post.of(wire.Refused)
    assert refused == [wire.Refused("r1", "draining"), wire.Refused("r2", "draining")]


def test_steps_run_ahead_of_a_grammar():
    bench = Bench(depth=1)
    bench.submit("r1", grammar=GrammarSpec("good"))
    bench.run()
    assert bench.engine.most_under_way == 2
    assert bench.post.tokens("r1") == [100, 101, 102]


def test_experts_are_counted_when_work_runs_out_and_every_five_seconds(bench: Bench):
    bench.engine.loads = np.array([[3, 1 << 40], [0, 2]])
    last_look = 0

    def tick(plan: StepPlan) -> None:
        nonlocal last_look
        bench.now_ns += STATS_INTERVAL_NS
        if plan.step == 30:
            last_look = bench.engine.num_looks

    bench.engine.on_step = tick
    bench.submit("r1", max_tokens=42)
    bench.run()
    # A request of 42 tokens and so many quarters of a second: after 5 s, and at its end.
    assert last_look == 1
    assert bench.engine.num_looks == 3
    stats = bench.post.of(wire.Stats)[-1].stats
    assert stats.num_experts == 2
    assert struct.unpack("<4q", stats.expert_loads) == (3, 1 << 40, 0, 2)


def test_a_model_without_experts_says_nothing_of_them(bench: Bench):
    bench.submit("r1")
    bench.run()
    stats = bench.post.of(wire.Stats)[-1].stats
    assert (stats.num_experts, stats.expert_loads) == (0, b"")
