"""A whole server as a process, with its workers, and a client that watches streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import httpx2

CHAT = "/v1/chat/completions"
SERVE_FAKE = Path(__file__).parent.parent / "http" / "serve_fake.py"
BYTE_A = 3 + ord("a")
"""Id of "a" in a tiny vocabulary."""
READY_TIMEOUT_S = 100
"""Workers import torch, and tests share two cores with others."""


def chat_body(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def is_running(pid: int) -> bool:
    """False once the process is gone or waits, dead, for its new parent to reap it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def eventually(condition: Callable[[], Any], timeout_s: float = 60) -> None:
    """Wait for something that should become true."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


class ServerProcess:
    """A server on a free port. Use as an async context manager; it and its workers end there."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self.log: list[str] = []
        self.output: list[str] = []
        self._paused: set[str] = set()

    async def __aenter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        pipes = ((self.process.stdout, self.output), (self.process.stderr, self.log))
        self._readers = [threading.Thread(target=_collect, args=pipe) for pipe in pipes]
        for reader in self._readers:
            reader.start()
        try:
            await self.ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if hasattr(self, "client"):
            await self.client.aclose()
        await self._stop()
        for reader in self._readers:
            await asyncio.to_thread(reader.join)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    async def _stop(self) -> None:
        """End it at once, but so that it takes its workers along: some read no end of file."""
        for model in self._paused.copy():
            self.resume(model)
        try:
            # Signals that come close to one another count once.
            for _ in range(600):
                if self.process.poll() is not None:
                    return
                self.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.1)
            raise AssertionError("the server goes on")
        finally:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)

    async def ready(self) -> None:
        await eventually(
            lambda: (
                any("ready:" in line for line in self.output) or self.process.poll() is not None
            ),
            READY_TIMEOUT_S,
        )
        assert self.process.poll() is None, self.log
        match = re.search(r"http://127\.0\.0\.1:(\d+)", "".join(self.output))
        assert match is not None
        self.port = int(match[1])
        self.client = httpx2.AsyncClient(base_url=match[0], timeout=60)

    # --- what can be seen ------------------------------------------------------------------

    def pids(self) -> dict[str, int]:
        """The latest worker process of each model that has come up."""
        lines = "".join(self.log)
        found = re.findall(r'"worker ready" model=(\S+) pid=(\d+)', lines)
        return {name: int(pid) for name, pid in found}

    def _pid(self, model: str) -> int:
        """That of its worker; its line in the log may come after what the worker answers."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while model not in self.pids() and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.pids()[model]

    async def status(self) -> Any:
        return (await self.client.get("/status/json")).json()

    async def model_status(self, name: str) -> Any:
        return next(m for m in (await self.status())["models"] if m["id"] == name)

    async def until(self, condition: Callable[[Any], bool], timeout_s: float = 60) -> None:
        """Wait until the status is as it should be."""
        async with asyncio.timeout(timeout_s):
            while not condition(await self.status()):
                await asyncio.sleep(0.02)

    async def idle(self) -> None:
        """Wait until nothing is held; fails if that never happens."""
        await self.until(
            lambda status: (
                status["waiting"] == 0
                and status["active_requests"] == 0
                and all(model["in_flight"] == 0 for model in status["models"])
            )
        )

    # --- what can be done --------------------------------------------------------------------

    async def ask(self, text: str = "hello", **fields: Any) -> httpx2.Response:
        return await self.client.post(CHAT, json=chat_body(text, **fields))

    def stream(self, text: str = "hello", **fields: Any) -> Stream:
        """Start a stream in a task of its own."""
        return Stream(self.client, chat_body(text, stream=True, **fields))

    def kill(self, model: str) -> int:
        """Kill the worker of a model with SIGKILL; its pid."""
        pid = self._pid(model)
        os.kill(pid, signal.SIGKILL)
        return pid

    def pause(self, model: str) -> None:
        """Stop the worker of a model where it is, so that nothing of it ends meanwhile."""
        self._paused.add(model)
        os.kill(self._pid(model), signal.SIGSTOP)

    def resume(self, model: str) -> None:
        """Let it go on; nothing if it has died since."""
        self._paused.discard(model)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids()[model], signal.SIGCONT)

    async def terminate(self) -> None:
        """Send SIGTERM; it has been taken notice of once no more connections are."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except ConnectionError:
                    return
                writer.transport.abort()
                with contextlib.suppress(OSError):  # The server may have ended it first.
                    await writer.wait_closed()
                await asyncio.sleep(0.02)

    async def back(self, model: str, killed: int) -> None:
        """Wait until the model has another process that serves."""
        await eventually(lambda: self.pids()[model] != killed, READY_TIMEOUT_S)
        await self.until(lambda s: all(m["state"] == "ready" for m in s["models"]))

    async def end(self, timeout_s: float = 60) -> int:
        """Wait for the process; its exit code."""
        return await asyncio.to_thread(self.process.wait, timeout_s)


class Stream:
    """One streamed answer, read as it comes.

    Attributes:
        events: what has come; the last one is "[DONE]" if all went well.
        status: HTTP status, 0 before the head.
    """

    def __init__(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        self.events: list[Any] = []
        self.status = 0
        self.rest = b""
        self._task = asyncio.create_task(self._read(client, body))

    async def _read(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        async with client.stream("POST", CHAT, json=body) as answer:
            self.status = answer.status_code
            if answer.status_code != 200:
                self.rest = await answer.aread()
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    self.events.append(data if data == "[DONE]" else json.loads(data))

    async def end(self) -> Self:
        """Wait for the end of the answer."""
        await self._task
        return self

    async def leave(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @property
    def is_over(self) -> bool:
        return self._task.done()

    @property
    def text(self) -> str:
        chunks = [event for event in self.events if event != "[DONE]" and event.get("choices")]
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)

    @property
    def models(self) -> set[str]:
        return {event["model"] for event in self.events if "model" in event}

    @property
    def errors(self) -> list[str]:
        """Codes of its error events, or of the refusal."""
        if self.rest:
            return [json.loads(self.rest)["error"]["code"]]
        return [event["error"]["code"] for event in self.events if "error" in event]


def _collect(pipe: Any, lines: list[str]) -> None:
    lines.extend(iter(pipe.readline, ""))


def fake_server(path: Path, scripts: dict[str, dict[str, Any]], **listener: Any) -> ServerProcess:
    """The listener with a scripted worker process for each model."""
    setup = {
        "listener": listener,
        "models": [
            {"path": str(path), "name": name, "script": script} for name, script in scripts.items()
        ],
        "script": {"vocab_size": 1000, "reply": [BYTE_A] * 9},
    }
    return ServerProcess([sys.executable, str(SERVE_FAKE), json.dumps(setup)])
