"""Supervisor: keeps one model's worker process alive, and ends it for good at the end.

Event loop only. Owns the process and the restarts; requests belong to its `handle`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import socket
from dataclasses import dataclass
from typing import Any

from luce.errors import StartupError, WorkerLost, WorkerStartError
from luce.protocol.frames import encode_frame
from luce.protocol.messages import LoadSpec, Shutdown
from luce.workers.clock import Clock, SystemClock
from luce.workers.handle import WorkerHandle, WorkerState
from luce.workers.spawn import Launcher, ProcessLauncher, WorkerProcess, signal_name

log = logging.getLogger(__name__)

SHUTDOWN_MARGIN_S = 2.0
"""A worker that obeys its grace still has to retire what is left and leave."""

TERMINATE_PATIENCE_S = 1.0
"""How long SIGTERM, or the end of the socket, may take to end a process before SIGKILL."""


@dataclass(slots=True)
class Backoff:
    """Pauses between restarts: double each time, forgotten after a healthy stretch.

    Attributes:
        first_s: the first pause.
        max_s: the longest one.
        reset_after_s: a worker that served this long starts again at `first_s`.
    """

    first_s: float = 1.0
    max_s: float = 30.0
    reset_after_s: float = 60.0
    _next_s: float | None = None

    def pause_s(self, healthy_s: float) -> float:
        """The pause after a worker that had served for `healthy_s` (0: never was ready)."""
        if self._next_s is None or healthy_s >= self.reset_after_s:
            self._next_s = self.first_s
        pause_s = self._next_s
        self._next_s = min(self.max_s, 2 * pause_s)
        return pause_s


class Supervisor:
    """Starts, watches, restarts and stops the worker of one model.

    Attributes:
        handle: where requests go; the same object over all restarts.
        failed: why the first start failed; nothing is tried again then. None otherwise.
        num_restarts: processes started after the first.
        pause_s: how long the pause before the next start is; None outside of one.
    """

    def __init__(
        self,
        spec: LoadSpec,
        launcher: Launcher | None = None,
        clock: Clock | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        self.handle = WorkerHandle(spec)
        self.failed: StartupError | None = None
        self.num_restarts = 0
        self.pause_s: float | None = None
        self._spec = spec
        self._launcher = launcher or ProcessLauncher()
        self._clock = clock or SystemClock()
        self._backoff = backoff or Backoff()
        self._process: WorkerProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready_ns: int | None = None
        self._came_up = asyncio.Event()
        self._stopping = asyncio.Event()
        self._wanted = True
        self._nudge = asyncio.Event()
        self._reaped = asyncio.Event()
        self._reaped.set()
        self._attempt: asyncio.Future[None] | None = None
        self.handle.on_change.append(self._note_ready)

    @property
    def spec(self) -> LoadSpec:
        """What its worker is told."""
        return self._spec

    def start(self) -> None:
        """Start the worker; returns at once. Needs a running event loop."""
        if self._task is not None:
            raise RuntimeError(f"{self._spec.name} is supervised already")
        # A request may have started it; what it logs later is no longer that request's.
        self._task = asyncio.create_task(
            self._run(), name=f"supervise-{self._spec.name}", context=contextvars.Context()
        )

    async def wait_first_load(self) -> None:
        """Wait until the model serves for the first time.

        Raises:
            StartupError: it does not load, or its process died before it was ready.
        """
        if self._task is None:
            raise RuntimeError(f"{self._spec.name} was not started")
        came_up = asyncio.ensure_future(self._came_up.wait())
        try:
            await asyncio.wait({came_up, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            came_up.cancel()
        if self.failed is not None:
            raise self.failed
        if not self._came_up.is_set():
            raise WorkerStartError(f"Model {self._spec.name} was stopped before it had loaded.")

    def rest(self) -> None:
        """Do not start another process when this one ends."""
        self._wanted = False
        self._nudge.set()

    def stay_up(self) -> None:
        """Start another process when this one ends; the way it is at the beginning."""
        self._wanted = True
        self._nudge.set()

    async def bring_up(self) -> None:
        """Start a process where there is none and wait until it serves; once, without retry.

        One that is just ending is waited for: its end says nothing of the new one.

        Raises:
            StartupError: it did not come up; there is none again.
        """
        if self._task is None:
            self.start()
        await self._reaped.wait()
        if self._stopping.is_set():
            raise WorkerStartError(f"{self._spec.name} was stopped.")
        self._attempt = asyncio.get_running_loop().create_future()
        self.stay_up()
        try:
            await self._attempt
        finally:
            self._attempt = None

    async def put_down(self) -> None:
        """End the process, if there is one, and start no other; it is reaped on return."""
        self.rest()
        if self._process is not None:
            self.handle.shutdown(0)
            down = asyncio.ensure_future(self.handle.wait_down())
            if not await self._ends_within(down, SHUTDOWN_MARGIN_S):
                self.handle.disconnect(WorkerLost(f"Model {self._spec.name} is unloaded."))
            await down
        # One that is just being started is ended as soon as it is there.
        await self._reaped.wait()

    async def stop(self, grace_s: float) -> None:
        """End the worker: Shutdown and its grace, then SIGTERM, then SIGKILL.

        When this returns the process is gone and reaped. May be called again with a shorter
        grace while it runs.
        """
        self._stopping.set()
        self._nudge.set()
        if self.handle.state is not WorkerState.STOPPED:
            self.handle.shutdown(grace_s)
        if self._task is not None:
            await self._stop_process(self._task, grace_s)
        if self.handle.state is not WorkerState.STOPPED:
            self.handle.shutdown(0)

    async def _stop_process(self, task: asyncio.Task[None], grace_s: float) -> None:
        if not await self._ends_within(task, grace_s + SHUTDOWN_MARGIN_S):
            if self._process is not None:
                self._process.terminate()
            if not await self._ends_within(task, TERMINATE_PATIENCE_S) and self._process:
                self._process.kill()
        await asyncio.shield(task)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            while not (self._wanted or self._stopping.is_set()):
                self._nudge.clear()
                await self._nudge.wait()
            if self._stopping.is_set():
                break
            code = await self._run_process()
            if self._stopping.is_set():
                break
            if self._attempt is not None and not self._attempt.done():
                self._wanted = False
                self._attempt.set_exception(self._start_failure(code))
            elif self._wanted and not self._came_up.is_set():
                self.failed = self._start_failure(code)
                return
            elif self._wanted:
                await self._pause(self._backoff.pause_s(self._healthy_s()), code)
        if self._attempt is not None and not self._attempt.done():
            self._attempt.set_exception(WorkerStartError(f"{self._spec.name} was stopped."))

    async def _pause(self, seconds: float, code: int | None) -> None:
        extra = {"model": self._spec.name, "exit": _describe(code), "pause_s": seconds}
        log.error("worker restarts after a pause", extra=extra)
        self.pause_s = seconds
        self._nudge.clear()
        nudged = asyncio.ensure_future(self._nudge.wait())
        try:
            self.num_restarts += not await self._ends_within(nudged, seconds)
        finally:
            nudged.cancel()
            self.pause_s = None

    async def _run_process(self) -> int | None:
        """One process from start to reaped end; its exit code, None if it did not start."""
        self._ready_ns = None
        self._reaped.clear()
        try:
            process = await self._launcher.launch(self._spec)
        except OSError as error:
            self._reaped.set()
            self.handle.start_failed(
                WorkerStartError(
                    f"The process of model {self._spec.name} cannot be started: {error}."
                )
            )
            return None
        self._process = process
        given_up = WorkerLost(f"Model {self._spec.name} is given up.")
        try:
            if self._is_given_up():
                _dismiss(process.sock)
            else:
                await self.handle.connect(process.sock)
                if self._is_given_up():
                    self.handle.disconnect(given_up)
                await self.handle.wait_down()
        except BaseException:
            self.handle.disconnect(given_up)
            process.kill()
            raise
        finally:
            code = await self._reap(process)
            process.sock.close()
            self._process = None
            self._reaped.set()
        return code

    def _is_given_up(self) -> bool:
        """A process that is just being started is not wanted any more."""
        return self._stopping.is_set() or not self._wanted

    async def _reap(self, process: WorkerProcess) -> int:
        ended = asyncio.ensure_future(process.wait())
        if not await self._ends_within(ended, TERMINATE_PATIENCE_S):
            process.kill()
        return await ended

    async def _ends_within(self, task: asyncio.Future[Any], seconds: float) -> bool:
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        return task.done()

    def _start_failure(self, code: int | None) -> StartupError:
        fault = self.handle.fault
        if isinstance(fault, StartupError):
            return fault
        reason = str(fault) if fault is not None else ""
        return WorkerStartError(
            f"Model {self._spec.name} did not come up: {reason} (exit: {_describe(code)})"
        )

    def _healthy_s(self) -> float:
        if self._ready_ns is None:
            return 0.0
        return (self._clock.now_ns() - self._ready_ns) / 1e9

    def _note_ready(self) -> None:
        if self.handle.state is WorkerState.READY and self._ready_ns is None:
            self._ready_ns = self._clock.now_ns()
            self._came_up.set()
            if self._attempt is not None and not self._attempt.done():
                self._attempt.set_result(None)
            log.info("worker ready", extra={"model": self._spec.name, "pid": self.handle.pid})


def _describe(code: int | None) -> str:
    if code is None:
        return "not started"
    if code >= 0:
        return str(code)
    return f"killed by {signal_name(-code)}"


def _dismiss(sock: socket.socket) -> None:
    """End a process that nobody has spoken to yet; told, it does not take it for our death."""
    with contextlib.suppress(OSError):
        sock.send(encode_frame(Shutdown(0)))
    sock.close()
