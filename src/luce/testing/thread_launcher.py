"""ThreadLauncher: fake workers in threads of this process, where a test can hold and crash them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

from luce.protocol.messages import LoadSpec
from luce.testing.fake_worker import FakeWorker
from luce.workers.spawn import WorkerProcess


class ThreadLauncher:
    """A `luce.workers.spawn.Launcher`.

    Attributes:
        num_launched: processes started so far, by model.
        failing: models that cannot be started now, and why.
    """

    def __init__(self, workers: Mapping[str, FakeWorker]) -> None:
        """Args:
        workers: by model name.
        """
        self._workers = workers
        self.num_launched = dict.fromkeys(workers, 0)
        self.failing: dict[str, str] = {}

    async def launch(self, spec: LoadSpec) -> WorkerProcess:
        """Start the fake worker of this model; see `Launcher.launch`."""
        if spec.name in self.failing:
            raise OSError(self.failing[spec.name])
        worker = self._workers[spec.name]
        sock = await asyncio.to_thread(worker.connect)
        self.num_launched[spec.name] += 1
        return _Session(worker, sock, self.num_launched[spec.name])


class _Session:
    """A session of a fake worker that passes for a process."""

    def __init__(self, worker: FakeWorker, sock: socket.socket, pid: int) -> None:
        self.sock = sock
        self.pid = pid
        self._worker = worker

    async def wait(self) -> int:
        await asyncio.to_thread(self._worker.join)
        return 0

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        self._worker.abandon()
