"""A gateway of the user's own: a child process that has the public address while we serve behind
it on loopback. Its policy is its business; its life is ours to watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from luce.errors import UsageError
from luce.option_file import reason_of
from luce.workers.spawn import signal_name

log = logging.getLogger(__name__)

FLAG = "--routing-gateway"
LOOPBACK = "127.0.0.1"
DRAIN_PATIENCE_S = 10.0
"""How long it may take to drain after SIGTERM."""
_LAUNCHER = ("-m", "luce.listener.gateway_exec")
_MAX_ERRNO_DIGITS = 16


@dataclass(frozen=True, slots=True)
class GatewayCommand:
    """What is run.

    Attributes:
        path: the program.
        engine_url: where we are.
        host: the public address it is to listen on.
        port: likewise.
    """

    path: Path
    engine_url: str
    host: str
    port: int

    @property
    def words(self) -> tuple[str, ...]:
        """Program and arguments."""
        return (
            *(str(self.path), "--engine-url", self.engine_url),
            *("--host", self.host, "--port", str(self.port)),
        )


def check_gateway(path: Path) -> None:
    """Before anything slow begins, see that the program could be run.

    Raises:
        UsageError: it could not.
    """
    if os.name != "posix":
        raise UsageError(f"{FLAG} needs a POSIX system")
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError) as error:
        raise UsageError(f"{FLAG}: cannot run {path}: {reason_of(error)}") from error
    if not is_file:
        raise UsageError(f"{FLAG}: cannot run {path}: it is not a regular file")
    if not os.access(path, os.X_OK):
        raise UsageError(f"{FLAG}: cannot run {path}: the file is not executable")


class Gateway:
    """One run of the gateway; it is not started again when it ends.

    Attributes:
        ended: done once the process is gone and reaped, or could not be started; its result says
            how it ended.
    """

    def __init__(self, command: GatewayCommand, launcher: Sequence[str] = _LAUNCHER) -> None:
        self._command = command
        self._launcher = launcher
        self._process: asyncio.subprocess.Process | None = None
        self.ended: asyncio.Task[str] = asyncio.create_task(self._run(), name="gateway")

    async def stop(self, force: asyncio.Event) -> None:
        """End it: SIGTERM, time to drain, then SIGKILL; when this returns it is gone and reaped.

        Args:
            force: skips the time when it is set.
        """
        self._signal(signal.SIGTERM)
        forced = asyncio.ensure_future(force.wait())
        try:
            await asyncio.wait(
                {self.ended, forced},
                timeout=DRAIN_PATIENCE_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            forced.cancel()
        if not self.ended.done():
            log.warning("the gateway does not end; it is killed")
        # Whoever it started may still be there.
        self._signal(signal.SIGKILL)
        await self.ended

    async def _run(self) -> str:
        reading, writing = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, *self._launcher, str(os.getpid()), str(writing)),
                *self._command.words,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(writing,),
                start_new_session=True,
            )
        except OSError as error:
            os.close(reading)
            return f"could not be started: {error.strerror}"
        finally:
            os.close(writing)
        log.info("gateway started", extra={"pid": self._process.pid, "path": self._command.path})
        code = await self._process.wait()
        return _describe(code, _read_errno(reading))

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _read_errno(reading: int) -> int | None:
    """What the launcher left in its pipe: why the program could not be run, or nothing."""
    with open(reading, "rb", closefd=True) as pipe:
        text = pipe.read(_MAX_ERRNO_DIGITS)
    return int(text) if text else None


def _describe(code: int, errno: int | None) -> str:
    if errno is not None:
        return f"could not be started: {os.strerror(errno)} (errno {errno})"
    if code < 0:
        return f"was killed by {signal_name(-code)}"
    return f"ended with status {code}"
