from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from luce.errors import ModelFileError
from luce.kv.manager import KVManager
from luce.protocol import messages as wire
from luce.protocol.frames import encode_frame, listener_decoder, read_batches
from luce.protocol.sampling import SamplingParams
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.plan import StepPlan, StepResult
from luce.scheduler.scheduler import Scheduler
from luce.testing.byte_tokenizer import pack_prompt
from luce.worker import main as worker_main
from luce.worker.load import LoadedModel, LoadStopped, LoadWatch
from luce.worker.mailbox import Mailbox

SPEC = wire.LoadSpec(name="m", path="m.gguf")
READY = wire.Ready(
    limits=wire.Limits(max_ctx=64, max_concurrency=2, kv_pool_tokens=128, block_tokens=16),
    architecture="scripted",
    device="cpu",
    dtype="float32",
    weights_bytes=1,
    kv_bytes=2,
    vocab_size=256,
    load_ms=0,
)


class Engine:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_closed = False

    def step(self, plan: StepPlan) -> Engine:
        self._plan = plan
        return self

    def result(self) -> StepResult:
        if self.error is not None:
            raise self.error
        sampled = [42 for item in self._plan.items if item.sample]
        return StepResult(self._plan.step, tuple(sampled))

    def expert_loads(self) -> None:
        return None

    def close(self) -> None:
        self.is_closed = True


class Far:
    """The listener's end of a worker that `serve`s in a thread."""

    def __init__(self) -> None:
        self.sock, near = socket.socketpair()
        self.sock.settimeout(60)
        self.mailbox = Mailbox(near, lambda: self.mailbox.post(wire.Shutdown(0.0)))
        self.code: int | None = None
        self._batches = read_batches(self.sock, listener_decoder())
        self._early: list[wire.ToListener] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.code = worker_main.serve(self.mailbox)
        self.mailbox.close()

    def start(self, *messages: wire.ToWorker) -> None:
        self.send(*messages)
        self._thread.start()

    def send(self, *messages: wire.ToWorker) -> None:
        self.sock.sendall(b"".join(encode_frame(message) for message in messages))

    def next(self) -> wire.ToListener:
        while not self._early:
            self._early = next(self._batches)
        return self._early.pop(0)

    def until(self, kind: type) -> list[wire.ToListener]:
        messages = [self.next()]
        while not isinstance(messages[-1], kind):
            messages.append(self.next())
        return messages

    def end(self) -> int | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.code


@pytest.fixture
def far() -> Iterator[Far]:
    far = Far()
    yield far
    far.sock.close()
    if far._thread.is_alive():
        far._thread.join(60)


def use_model(monkeypatch, load: Callable[..., LoadedModel]) -> None:
    monkeypatch.setattr(worker_main, "load_model", load)


def model_of(engine: Engine) -> LoadedModel:
    limits = SchedulerLimits(max_rows=2, max_ctx=64, chunk=32)
    scheduler = Scheduler(KVManager(9, 16), limits, lambda: 1, lambda: 1)
    return LoadedModel(engine, scheduler, 0, READY)


def submit(request_id: str) -> wire.Submit:
    return wire.Submit(request_id, pack_prompt([1, 2]), SamplingParams(max_tokens=2))


def test_load_serve_shutdown(far: Far, monkeypatch):
    engine = Engine()

    def load(spec, progress) -> LoadedModel:
        assert spec == SPEC
        progress("weights", 50, 100)
        progress("weights", 100, 100)
        return model_of(engine)

    use_model(monkeypatch, load)
    far.start(wire.Load(SPEC))
    news = far.until(wire.Ready)
    assert news[:2] == [
        wire.LoadProgress("weights", 50, 100),
        wire.LoadProgress("weights", 100, 100),
    ]
    assert news[-1].limits == READY.limits
    far.send(submit("r1"))
    retired = far.until(wire.Retired)[-1]
    assert (retired.request_id, retired.usage.completion_tokens) == ("r1", 2)
    assert not engine.is_closed
    far.send(wire.Shutdown(1.0))
    assert far.end() == 0
    assert engine.is_closed


def test_a_load_that_fails_is_a_fatal_fault_and_its_exit_code(far: Far, monkeypatch):
    def load(spec, progress) -> LoadedModel:
        raise ModelFileError("m.gguf: not a GGUF file.")

    use_model(monkeypatch, load)
    far.start(wire.Load(SPEC))
    assert far.next() == wire.Fault("ModelFileError", "m.gguf: not a GGUF file.", True)
    assert far.end() == 3


def test_a_load_that_fails_is_for_the_listener_to_tell(far: Far, monkeypatch, caplog):
    """Its path is no UTF-8, and nothing of it is logged here."""

    def load(spec, progress) -> LoadedModel:
        raise ModelFileError("\udcff.gguf: not a GGUF file.")

    use_model(monkeypatch, load)
    far.start(wire.Load(SPEC))
    assert far.next() == wire.Fault("ModelFileError", "?.gguf: not a GGUF file.", True)
    assert far.end() == 3
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_a_bug_while_loading_tells_no_details(far: Far, monkeypatch, caplog):
    def load(spec, progress) -> LoadedModel:
        raise KeyError("secret")

    use_model(monkeypatch, load)
    with caplog.at_level(logging.ERROR):
        far.start(wire.Load(SPEC))
        fault = far.next()
    assert (fault.error, fault.fatal) == ("InternalError", True)
    assert "secret" not in fault.message
    assert far.end() == 1
    assert "secret" in caplog.text


def test_a_bug_in_a_step_is_a_fatal_fault_and_frees_the_engine(far: Far, monkeypatch):
    engine = Engine(ZeroDivisionError("a bug"))
    use_model(monkeypatch, lambda spec, progress: model_of(engine))
    far.start(wire.Load(SPEC), submit("r1"))
    assert far.until(wire.Fault)[-1].fatal
    assert far.end() == 1
    assert engine.is_closed


@pytest.mark.parametrize("before_load", [True, False])
def test_shutdown_together_with_load_is_not_lost(far: Far, monkeypatch, before_load):
    use_model(monkeypatch, lambda spec, progress: model_of(Engine()))
    messages = [wire.Load(SPEC), wire.Shutdown(0.0)]
    far.start(*(reversed(messages) if before_load else messages))
    assert far.end() == 0


def test_shutdown_stops_a_load_at_its_next_progress(far: Far, monkeypatch):
    monkeypatch.setattr("luce.worker.load.PROGRESS_INTERVAL_NS", 0)
    advanced: list[int] = []

    def load(spec, progress) -> LoadedModel:
        progress("weights", 0, 1000)
        far.send(wire.Shutdown(0.0))
        while far.mailbox._inbox.empty():
            threading.Event().wait(0.005)
        for done in range(1, 1000):
            advanced.append(done)
            progress("weights", done, 1000)
        return model_of(Engine())

    use_model(monkeypatch, load)
    far.start(wire.Load(SPEC))
    assert far.end() == 0
    assert advanced == [1]


class Post:
    def __init__(self) -> None:
        self.inbox: list[wire.ToWorker] = []
        self.sent: list[wire.ToListener] = []

    def receive(self, *, wait: bool) -> list[wire.ToWorker]:
        messages, self.inbox = self.inbox, []
        return messages

    def send(self, message: wire.ToListener) -> None:
        self.sent.append(message)


def test_progress_is_at_most_ten_a_second_and_always_has_the_end():
    now_ns = [1]
    post = Post()
    watch = LoadWatch(post, lambda: now_ns[0])
    for done in range(1001):
        watch("weights", done, 1000)
        now_ns[0] += 1_000_000
    done_bytes = [message.done_bytes for message in post.sent]
    assert 10 <= len(done_bytes) <= 12
    assert done_bytes[0] == 0
    assert done_bytes[-1] == 1000


def test_a_load_answers_controls_and_hears_shutdown():
    post = Post()
    watch = LoadWatch(post, lambda: 1)
    post.inbox = [wire.Control(4, "check"), wire.Shutdown(1.0)]
    with contextlib.suppress(LoadStopped):
        watch("weights", 1, 1)
        raise AssertionError("the shutdown went unheard")
    assert post.sent[-1] == wire.ControlDone(4, "The model is loading.")


def test_sigterm_drains_first_and_ends_at_once_the_second_time():
    posted: list[wire.ToWorker] = []

    class Inbox:
        post = staticmethod(posted.append)

    terminate = worker_main._Terminate(Inbox())
    terminate()
    terminate()
    assert posted == [wire.Shutdown(worker_main.TERMINATE_GRACE_S), wire.Shutdown(0.0)]


@pytest.mark.parametrize("module", ["luce.worker.main", "luce.workers.supervisor"])
def test_torch_is_not_imported_before_a_model_is_loaded(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
