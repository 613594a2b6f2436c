"""Starting a worker as a process of its own, with one end of a socketpair inherited.

Knows processes, not what they say. A worker process never outlives the listener: it leaves at
the end of its socket, and on Linux the kernel kills it with the listener (`worker.lifeline`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from luce.protocol.messages import LoadSpec

WORKER_ARGUMENTS = ("-m", "luce.worker.main")
# Placement knows devices by their PCI addresses; by itself CUDA puts the fastest first.
_DEVICE_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
_PUMP_BYTES = 65536
_PUMP_PATIENCE_S = 1.0


class WorkerProcess(Protocol):
    """A started worker.

    Attributes:
        sock: the listener's end of the socketpair; the caller owns it.
        pid: process id.
    """

    sock: socket.socket
    pid: int

    async def wait(self) -> int:
        """Wait for the end and reap it; a negative number is the signal that killed it."""

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); nothing if it has ended."""

    def kill(self) -> None:
        """End it and its children (SIGKILL); nothing if it has ended."""


class Launcher(Protocol):
    """Starts workers; tests put another one in its place."""

    async def launch(self, spec: LoadSpec) -> WorkerProcess:
        """Start a worker for this model; it gets the spec over its socket.

        Raises:
            OSError: the process cannot be started.
        """


class ProcessLauncher:
    """Starts workers with an interpreter of choice.

    Args:
        interpreter: the Python that runs the worker, e.g. one with a ROCm build of torch.
        arguments: what it runs; `--fd N` is appended.
        env: variables set on top of the inherited environment.
        write_line: gets each line a worker prints, with the model's name in front.
    """

    def __init__(
        self,
        interpreter: str = sys.executable,
        arguments: Sequence[str] = WORKER_ARGUMENTS,
        *,
        env: Mapping[str, str] | None = None,
        write_line: Callable[[str], None] | None = None,
    ) -> None:
        self._command = (interpreter, *arguments)
        self._env = dict(env or {})
        self._write_line = write_line or _to_stderr

    async def launch(self, spec: LoadSpec) -> WorkerProcess:
        """Start a worker in a process group of its own, so that Ctrl-C does not reach it.

        Raises:
            OSError: the interpreter cannot be run, or there are no descriptors left.
        """
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                "--fd",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **_DEVICE_ORDER, **self._env},
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return _Process(ours, process, f"[{spec.name}] ", self._write_line)


class _Process:
    """A worker that runs under `asyncio`'s child watching, with its output pumped."""

    def __init__(
        self,
        sock: socket.socket,
        process: asyncio.subprocess.Process,
        prefix: str,
        write_line: Callable[[str], None],
    ) -> None:
        self.sock = sock
        self.pid = process.pid
        self._process = process
        self._pump = asyncio.create_task(self._pump_output(prefix, write_line))

    async def wait(self) -> int:
        code = await self._process.wait()
        # A grandchild may hold the pipe open for ever; its output is not worth that.
        await asyncio.wait({self._pump}, timeout=_PUMP_PATIENCE_S)
        self._pump.cancel()
        return code

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # It ended and was not reaped yet.
                os.killpg(self.pid, number)

    async def _pump_output(self, prefix: str, write_line: Callable[[str], None]) -> None:
        output = self._process.stdout
        if output is None:
            return
        rest = b""
        while data := await output.read(_PUMP_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _PUMP_BYTES:
                lines, rest = [*lines, rest], b""
            for line in lines:
                write_line(prefix + line.decode(errors="replace"))
        if rest:
            write_line(prefix + rest.decode(errors="replace"))


def signal_name(number: int) -> str:
    """SIGKILL and its like; most real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
