"""A client as a process with nothing of ours around it: no variables, a home folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from recipes import recipe_files
from roster import DRIVERS, INSTALLED, Client

START_S = 300
"""Open WebUI loads for half a minute on two cores, the first time for longer."""


class ClientProcess:
    """A running client and what it has written."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._reader = asyncio.create_task(self._read())
        self.output = ""

    async def wait_for(self, text: str) -> None:
        """Wait until it has written this."""
        async with asyncio.timeout(START_S):
            while text not in self.output:
                if self._reader.done():
                    raise AssertionError(f"ended without {text!r}:\n{self.output}")
                await asyncio.sleep(0.05)

    async def end(self) -> int:
        """Wait until it ends by itself; its exit code."""
        async with asyncio.timeout(START_S):
            await self._reader
            return await self._process.wait()

    def tell(self) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    def interrupt(self) -> None:
        """What the key does that cancels."""
        os.killpg(self._process.pid, signal.SIGINT)

    async def kill(self) -> None:
        """End it and all it has started."""
        with contextlib.suppress(ProcessLookupError):  # It may have ended.
            os.killpg(self._process.pid, signal.SIGKILL)
        await self.end()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while piece := await self._process.stdout.read(65536):
            self.output += piece.decode(errors="replace")


@asynccontextmanager
async def running(client: Client, mode: str, url: str, home: Path) -> AsyncIterator[ClientProcess]:
    """Follow the client's recipe in an empty home folder, and run it."""
    port = _free_port()
    project = home / "project"
    project.mkdir(parents=True)
    for name, text in recipe_files(client, url, port).items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    if client.driver is not None:
        shutil.copy(DRIVERS / client.driver, project)
    if client.place == "node":
        (home / "node_modules").symlink_to(INSTALLED / "node" / "node_modules")
    has_input = client.driver is not None
    process = await asyncio.create_subprocess_exec(
        *client.command(mode, port),
        cwd=project,
        env={"HOME": str(home), "PATH": client.search_path(), **client.environment},
        stdin=PIPE if has_input else asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    running_client = ClientProcess(process)
    try:
        yield running_client
    finally:
        await running_client.kill()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
