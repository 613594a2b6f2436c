"""The order in which a server ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from luce.errors import ShuttingDown
from luce.listener.generate import Generator
from luce.listener.http_server import HttpServer
from luce.routing.router import Router
from luce.workers.supervisor import Supervisor

ABORT_PATIENCE_S = 2.0
"""How long aborted requests may take to end before their workers are ended."""


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

        Args:
            grace_s: how long running requests may take to end by themselves.
        """
        self.router.shut_down()
        self.http.stop_accepting()
        if not await self._connections_end(grace_s):
            self.generator.abort_all(ShuttingDown("The server is stopping."))
            await self._connections_end(ABORT_PATIENCE_S)
        self.http.cut_connections()
        if self.force.is_set():
            for supervisor in self.supervisors:
                supervisor.handle.disconnect(ShuttingDown("The server is stopping."))
        await asyncio.gather(*(supervisor.stop(0) for supervisor in self.supervisors))
        await self.http_task

    async def _connections_end(self, seconds: float) -> bool:
        """Wait for the last connection; False if it is still there, or there is no time."""
        forced = asyncio.create_task(self.force.wait())
        try:
            await asyncio.wait(
                {self.http_task, forced}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            forced.cancel()
        return self.http_task.done() or self.force.is_set()
