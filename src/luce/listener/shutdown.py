"""The order in which a server ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from luce.errors import ShuttingDown
from luce.listener.generate import Generator
from luce.listener.http_server import HttpServer
from luce.routing.router import Router
from luce.workers.supervisor import Supervisor

log = logging.getLogger(__name__)

ABORT_PATIENCE_S = 2.0
"""How long aborted requests may take to end before their workers are ended."""
WORKER_PATIENCE_S = 5.0
"""How long ending the workers may take; a process left behind ends with its socket."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """What has to end.

    Attributes:
        router: refuses whoever waits.
        generator: has the running requests.
        supervisors: have the worker processes.
        http: has the connections.
        http_task: runs `http.serve`.
        force: set when it should be over at once.
    """

    router: Router
    generator: Generator
    supervisors: Sequence[Supervisor]
    http: HttpServer
    http_task: asyncio.Task[None]
    force: asyncio.Event

    async def run(self, grace_s: float) -> None:
        """Accept nothing more, refuse who waits, let what runs end, then end it, then workers.

        Being forced skips the time, not the steps: what runs is told that it ends.

        Args:
            grace_s: how long running requests may take to end by themselves.
        """
        self.router.shut_down()
        self.http.stop_accepting()
        await self._ends_or_forced(self.http_task, grace_s)
        if not self.http_task.done():
            if self.generator.num_running:
                log.warning("answers are cut off", extra={"answers": self.generator.num_running})
            self.generator.abort_all(_stopping())
            await asyncio.wait({self.http_task}, timeout=ABORT_PATIENCE_S)
        self.http.cut_connections()
        await self._end_workers()
        await self.http_task

    async def _end_workers(self) -> None:
        stops = asyncio.gather(*(supervisor.stop(0) for supervisor in self.supervisors))
        if not self.force.is_set():
            await self._ends_or_forced(stops, WORKER_PATIENCE_S)
        if self.force.is_set() or not stops.done():
            for supervisor in self.supervisors:
                supervisor.handle.disconnect(_stopping())
            await asyncio.wait({stops}, timeout=WORKER_PATIENCE_S)
        if not stops.done():
            log.error("workers did not end; they are left to the end of their sockets")
            stops.cancel()

    async def _ends_or_forced(self, what: asyncio.Future[Any], seconds: float) -> None:
        """Wait for it, for a time and while nobody forces us on."""
        forced = asyncio.ensure_future(self.force.wait())
        try:
            await asyncio.wait({what, forced}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            forced.cancel()


def farewell(num_answers: int, grace_s: float, drain_s: float) -> str:
    """What people are told when the end begins, so that silence does not look like a hang.

    Args:
        num_answers: how many are being generated.
        grace_s: how long these may take.
        drain_s: how long a gateway may take before; 0: there is none.
    """
    seconds = grace_s + drain_s if num_answers else drain_s
    if not seconds or (num_answers and not grace_s):
        return "stopping"
    if not num_answers:
        what, they = "the gateway ends", "it"
    elif num_answers == 1:
        what, they = "1 answer is finished first", "it"
    else:
        what, they = f"{num_answers} answers are finished first", "them"
    return (
        f"stopping: {what}, which may take {seconds:.0f} s; a second Ctrl-C or SIGTERM ends "
        f"{they} at once"
    )


def _stopping() -> ShuttingDown:
    return ShuttingDown("The server is stopping.")
