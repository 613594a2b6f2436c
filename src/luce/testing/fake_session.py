"""FakeSession: one connection of a FakeWorker, from Hello to the end of the socket."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from luce.config.device import parse_device
from luce.protocol import messages as wire
from luce.protocol.frames import (
    MAX_FRAME_BYTES,
    FrameError,
    encode_frame,
    read_batches,
    worker_decoder,
)
from luce.protocol.sampling import TokenLogprobs
from luce.testing.fake_residency import FakeResidency, Transition
from luce.testing.fake_script import FakeScript
from luce.testing.fake_sequences import FakePool, FakeSequence

FILE_POLL_S = 0.005
"""How often a file that a script waits for is looked for."""


@dataclass(frozen=True)
class Release:
    """Let held requests go on; None: all."""

    request_id: str | None


@dataclass(frozen=True)
class ReleaseControl:
    """Let a held evict or reinstate go on."""


@dataclass(frozen=True)
class Crash:
    """Die now."""


@dataclass(frozen=True)
class _Closed:
    """The listener's end is gone."""


_Item = wire.ToWorker | Release | ReleaseControl | Crash | _Closed


class _SessionEnded(Exception):
    """Unwinds the session's thread."""


@dataclass
class FakeLog:
    """What a FakeWorker saw, over all its sessions."""

    received: list[wire.ToWorker] = field(default_factory=list)
    retired: list[wire.Retired] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    max_in_flight: int = 0


class FakeSession:
    """Plays a script to one listener. All but `inbox` belongs to the thread in `run`."""

    def __init__(
        self, sock: socket.socket, script: FakeScript, log: FakeLog, crash: Callable[[], None]
    ) -> None:
        self.inbox: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._sock = sock
        self._script = script
        self._crash_process = crash
        self._log = log
        self._pool = FakePool(script)
        self._residency = FakeResidency(script, log.transitions)
        self._refusals_left = script.refuse_next
        self._step = 0
        self._stop_at: float | None = None
        self._is_draining = False
        self._stopped_reading = threading.Event()
        self._is_deserted = threading.Event()

    @property
    def in_flight(self) -> int:
        return len(self._pool.sequences)

    def abandon(self) -> None:
        """From another thread: end the session as if the listener had gone."""
        self._stopped_reading.set()
        self.inbox.put(_Closed())
        with contextlib.suppress(OSError):  # The session may have ended by itself.
            self._sock.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        reader = threading.Thread(target=self._read, name="fake-worker-reader", daemon=True)
        try:
            self._maybe_crash("start")
            version = wire.PROTOCOL_VERSION + (self._script.malformed == "version")
            self._send(wire.Hello(version, os.getpid(), "fake"))
            reader.start()
            self._load()
            while True:
                self._take_inbox()
                self._advance()
        except (_SessionEnded, OSError):
            # OSError: the listener closed first; nobody is left to talk to.
            self._shut(reader)

    def _shut(self, reader: threading.Thread) -> None:
        self._stopped_reading.set()
        with contextlib.suppress(OSError):  # The peer may have closed first.
            self._sock.shutdown(socket.SHUT_RDWR)
        if reader.is_alive():
            reader.join()
        self._sock.close()

    def _read(self) -> None:
        with contextlib.suppress(FrameError, OSError):  # An end like any other.
            for batch in read_batches(self._sock, worker_decoder()):
                for message in batch:
                    self.inbox.put(message)
                if self._script.stall_reading:
                    self._stopped_reading.wait()
        self._is_deserted.set()
        self.inbox.put(_Closed())

    def _send(self, message: wire.ToListener) -> None:
        self._sock.sendall(encode_frame(message))

    # --- load ------------------------------------------------------------------------------

    def _load(self) -> None:
        load = self._next_message()
        if not isinstance(load, wire.Load):
            raise _SessionEnded
        self._maybe_crash("load")
        self._send(wire.LoadProgress("weights", 0, 100))
        self._take_load_time()
        if self._script.load_error and self._is_first_time():
            self._send(wire.Fault(self._script.load_error, self._script.load_message, True))
            raise _SessionEnded
        self._send(wire.LoadProgress("weights", 100, 100))
        ready = wire.Ready(
            limits=self._script.limits,
            architecture=self._script.architecture,
            device=str(parse_device(load.spec.device)),
            dtype="float32",
            weights_bytes=self._script.weights_bytes,
            kv_bytes=self._script.kv_pool_tokens,
            vocab_size=self._script.vocab_size,
            load_ms=int(self._script.load_s * 1000),
            layers=self._script.layers,
            num_layers=self._script.num_layers,
            hidden_size=self._script.hidden_size,
        )
        self._send(ready)

    def _take_load_time(self) -> None:
        time.sleep(self._script.load_s)
        awaited = self._script.load_until_file
        while awaited and not Path(awaited).exists() and not self._is_deserted.wait(FILE_POLL_S):
            pass

    def _next_message(self) -> wire.ToWorker:
        item = self.inbox.get()
        if isinstance(item, Crash):
            self._crash()
        if isinstance(item, Release | ReleaseControl | Crash | _Closed):
            raise _SessionEnded
        self._log.received.append(item)
        return item

    # --- serve -----------------------------------------------------------------------------

    def _take_inbox(self) -> None:
        """Handle everything that has come; wait for more only while nothing is due."""
        wait_s = self._seconds_to_next_event()
        try:
            self._handle(self.inbox.get(timeout=wait_s) if wait_s != 0 else self.inbox.get_nowait())
            while True:
                self._handle(self.inbox.get_nowait())
        except queue.Empty:
            return

    def _seconds_to_next_event(self) -> float | None:
        times = [seq.due for seq in self._pool.sequences.values() if not seq.is_held]
        times += [at for at in (self._stop_at, self._residency.due) if at is not None]
        if self._script.hold_until_file and any(s.is_held for s in self._pool.sequences.values()):
            times.append(time.monotonic() + FILE_POLL_S)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _handle(self, item: _Item) -> None:
        if isinstance(item, _Closed):
            raise _SessionEnded
        elif isinstance(item, Crash):
            self._crash()
        elif isinstance(item, Release):
            self._release(item)
        elif isinstance(item, ReleaseControl):
            self._residency.release()
        else:
            self._log.received.append(item)
            self._handle_message(item)

    def _handle_message(self, message: wire.ToWorker) -> None:
        if isinstance(message, wire.Submit):
            self._submit(message)
        elif isinstance(message, wire.Cancel):
            sequence = self._pool.sequences.get(message.request_id)
            if sequence is not None:
                self._cancel(sequence)
        elif isinstance(message, wire.Control):
            self._control(message)
        elif isinstance(message, wire.Shutdown):
            self._drain()
            if not self._script.ignore_shutdown:
                self._stop_at = time.monotonic() + message.grace_s

    def _control(self, control: wire.Control) -> None:
        if control.op == "evict" or control.op == "reinstate":
            self._maybe_crash(control.op)
            self._residency.begin(control)
            return
        if control.op == "drain":
            self._drain()
        self._send(wire.ControlDone(control.op_id))

    def _submit(self, submit: wire.Submit) -> None:
        self._maybe_crash("submit")
        if self._script.malformed not in ("", "version"):
            self._send_malformed()
            return
        refused = self._scripted_refusal(submit)
        outcome = refused or self._pool.admit(submit)
        if isinstance(outcome, wire.Refused):
            self._send(outcome)
            return
        self._log.max_in_flight = max(self._log.max_in_flight, self.in_flight)
        self._send(wire.Admitted(submit.request_id, self._script.cached_tokens))
        self._send_stats()
        self._maybe_crash("admitted")

    def _cancel(self, sequence: FakeSequence) -> None:
        if self._script.late_cancel:
            sequence.is_cancelled = True
        else:
            self._retire(sequence, "cancelled")

    def _scripted_refusal(self, submit: wire.Submit) -> wire.Refused | None:
        if self._is_draining or self._residency.is_evicted:
            return wire.Refused(submit.request_id, "draining")
        if self._refusals_left == 0:
            return None
        self._refusals_left -= 1
        script = self._script
        return wire.Refused(
            submit.request_id, script.refuse_reason, script.refuse_error, script.refuse_detail
        )

    def _drain(self) -> None:
        self._maybe_crash("drain")
        self._is_draining = True

    def _release(self, command: Release) -> None:
        every = self._pool.sequences.values()
        self._let_go([s for s in every if command.request_id in (None, s.request_id)])

    def _let_go(self, sequences: list[FakeSequence]) -> None:
        for sequence in sequences:
            sequence.is_held = False
            del sequence.holds[:1]
            sequence.due = time.monotonic()

    def _advance(self) -> None:
        """One step: every sequence that is due gets its next tokens, in one frame."""
        if self._script.hold_until_file and Path(self._script.hold_until_file).exists():
            self._let_go([s for s in self._pool.sequences.values() if s.is_held])
        now = time.monotonic()
        done = self._residency.take_done(now)
        if done is not None:
            self._send(done)
        due = [s for s in self._pool.sequences.values() if not s.is_held and s.due <= now]
        for sequence in [sequence for sequence in due if sequence.is_cancelled]:
            due.remove(sequence)
            self._retire(sequence, "cancelled")
        if due:
            self._step += 1
            deltas = [self._delta(sequence) for sequence in due]
            self._send(wire.StepOutput(self._step, deltas))
        for sequence in due:
            self._pool.grow(sequence)
            if self._script.crash == "tokens" and sequence.sent >= self._script.crash_tokens:
                self._maybe_crash("tokens")
            if sequence.is_held or not sequence.is_done:
                continue
            if self._script.fail_error:
                self._retire(sequence, "error", self._script.fail_error)
            else:
                self._retire(sequence, sequence.finish)
        if self._stop_at is not None:
            self._maybe_stop(now)

    def _delta(self, sequence: FakeSequence) -> wire.SeqDelta:
        script = self._script
        count = script.tokens_per_step
        if sequence.holds:
            count = min(count, sequence.holds[0] - sequence.sent)
        tokens = sequence.reply[sequence.sent : sequence.sent + count]
        sequence.sent += len(tokens)
        sequence.due = time.monotonic() + script.token_delay_s
        sequence.is_held = sequence.sent in sequence.holds
        has_finish = sequence.is_done and not (sequence.is_held or script.fail_error)
        finish = sequence.finish if has_finish else None
        read = sequence.submit.sampling.hidden if has_finish else None
        hidden = None if read is None else self._script.hidden_of(read)
        logprobs = self._logprobs(sequence, tokens)
        return wire.SeqDelta(sequence.request_id, tokens, finish, logprobs, hidden)

    def _logprobs(self, sequence: FakeSequence, tokens: list[int]) -> list[TokenLogprobs] | None:
        count = sequence.submit.sampling.logprobs
        if count is None:
            return None
        first = sequence.sent - len(tokens)
        return [
            self._script.logprobs_of(first + place, token_id, count)
            for place, token_id in enumerate(tokens)
        ]

    def _maybe_stop(self, now: float) -> None:
        if self._stop_at is not None and now >= self._stop_at:
            for sequence in list(self._pool.sequences.values()):
                self._retire(sequence, "error", "ShuttingDown")
        if not self._pool.sequences:
            raise _SessionEnded

    def _retire(self, sequence: FakeSequence, finish: wire.FinishReason, error: str = "") -> None:
        self._pool.release(sequence)
        detail = f"the fake worker failed with {error}." if error else ""
        retired = sequence.retired(finish, error, detail, self._script.cached_tokens)
        self._log.retired.append(retired)
        self._send(retired)
        self._send_stats()

    def _send_stats(self) -> None:
        stats = wire.WorkerStats(
            running=self.in_flight,
            free_blocks=self._pool.free_blocks,
            total_blocks=self._pool.total_blocks,
            steps=self._step,
        )
        self._send(wire.Stats(stats))

    # --- faults ----------------------------------------------------------------------------

    def _send_malformed(self) -> None:
        bodies = {
            "garbage": struct.pack("<I", 4) + b"\xc1\xc1\xc1\xc1",
            "too_large": struct.pack("<I", MAX_FRAME_BYTES + 1),
            "truncated": struct.pack("<I", 100) + b"half",
        }
        self._sock.sendall(bodies[self._script.malformed])
        if self._script.malformed == "truncated":
            raise _SessionEnded

    def _maybe_crash(self, point: str) -> None:
        if self._script.crash == point and self._is_first_time():
            self._crash()

    def _is_first_time(self) -> bool:
        if not self._script.crash_once_file:
            return True
        marker = Path(self._script.crash_once_file)
        if marker.exists():
            return False
        marker.touch()
        return True

    def _crash(self) -> None:
        self._crash_process()
        raise _SessionEnded
