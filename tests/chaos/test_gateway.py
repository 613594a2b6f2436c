"""A gateway of the user's own before a real server: its start, its end, and nothing left behind.

Rows A37 and A38 of the swap specification's tables.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from server_process import BYTE_A, SERVE_FAKE, ServerProcess, eventually, is_running

from luce.testing.tiny_models import tiny_llama
from ports import free_port

GATEWAY = """#!{python}
import json, os, signal, sys, time, urllib.request
folder = {folder!r}
mode = {mode!r}
def tell(name, value):
    with open(os.path.join(folder, name + ".part"), "w") as file:
        json.dump(value, file)
    os.replace(os.path.join(folder, name + ".part"), os.path.join(folder, name))
def drain(number, frame):
    url = sys.argv[2] + "/health"
    tell("drained", urllib.request.urlopen(url, timeout=60).status)
    sys.exit(0)
def stay(number, frame):
    tell("asked", number)
signal.signal(signal.SIGTERM, stay if mode == "stubborn" else drain)
links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
fds = sorted(os.readlink(link) for link in links if os.path.exists(link))
tell("started", dict(pid=os.getpid(), words=sys.argv[1:], fds=fds))
while not os.path.exists(os.path.join(folder, "leave")):
    time.sleep(0.05)
sys.exit(0)
"""

pytestmark = pytest.mark.anyio


class Setup:
    """A gateway program, and the server that runs it."""

    def __init__(self, folder: Path, mode: str = "drains", patience_s: float = 60.0) -> None:
        self.folder = folder
        self.program = folder / "my gateway"
        text = GATEWAY.format(python=sys.executable, folder=str(folder), mode=mode)
        self.program.write_text(text, encoding="utf-8")
        self.program.chmod(0o755)
        self.patience_s = patience_s
        self.public_port = free_port()
        self.engine_port = free_port()

    @property
    def command(self) -> list[str]:
        setup = {
            "listener": {"host": "0.0.0.0", "port": self.public_port},
            "routing": {
                "routing_gateway": str(self.program),
                "routing_engine_port": self.engine_port,
            },
            "models": [{"path": str(tiny_llama(self.folder / "m")), "name": "m"}],
            "drain_patience_s": self.patience_s,
            "script": {"vocab_size": 1000, "reply": [BYTE_A], "max_concurrency": 1},
        }
        return [sys.executable, str(SERVE_FAKE), json.dumps(setup)]

    @asynccontextmanager
    async def served(self) -> AsyncIterator[ServerProcess]:
        async with ServerProcess(self.command) as server:
            yield server

    async def started(self) -> dict[str, Any]:
        """What the gateway found when it came up."""
        await eventually((self.folder / "started").exists)
        found: dict[str, Any] = json.loads((self.folder / "started").read_text())
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m").mkdir()
    return tmp_path


async def test_it_has_the_public_address_and_we_loopback(folder: Path) -> None:
    setup = Setup(folder)
    async with setup.served() as server:
        found = await setup.started()
        assert found["words"] == [
            *("--engine-url", f"http://127.0.0.1:{setup.engine_port}"),
            *("--host", "0.0.0.0", "--port", str(setup.public_port)),
        ]
        # Nothing of ours came along.
        assert len(found["fds"]) == 3
        answer = await server.ask()
        assert answer.status_code == 200, answer.text
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", setup.public_port), timeout=60)


async def test_it_drains_while_we_still_serve(folder: Path) -> None:
    setup = Setup(folder)
    async with setup.served() as server:
        pid = (await setup.started())["pid"]
        server.process.send_signal(signal.SIGTERM)
        assert await server.end() == 0
        assert json.loads((folder / "drained").read_text()) == 200
        assert not is_running(pid)


async def test_one_that_leaves_by_itself_takes_us_along(folder: Path) -> None:
    setup = Setup(folder)
    async with setup.served() as server:
        await setup.started()
        (folder / "leave").touch()
        assert await server.end() == 1
        assert 'the gateway is gone" how="ended with status 0"' in "".join(server.log)


async def test_one_that_is_killed_takes_us_along(folder: Path) -> None:
    setup = Setup(folder)
    async with setup.served() as server:
        os.kill((await setup.started())["pid"], signal.SIGKILL)
        assert await server.end() == 1
        assert "was killed by SIGKILL" in "".join(server.log)


async def test_one_that_never_drains_is_killed_and_we_end_well(folder: Path) -> None:
    setup = Setup(folder, "stubborn", patience_s=1.0)
    async with setup.served() as server:
        pid = (await setup.started())["pid"]
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert await server.end() == 0
        assert time.monotonic() - began >= 1.0
        assert not is_running(pid)


async def test_a_second_signal_does_not_wait_for_it(folder: Path) -> None:
    setup = Setup(folder, "stubborn")
    async with setup.served() as server:
        pid = (await setup.started())["pid"]
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        await eventually((folder / "asked").exists)
        server.process.send_signal(signal.SIGTERM)
        assert await server.end() == 0
        assert time.monotonic() - began < 50
        assert not is_running(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends it on Linux")
async def test_it_does_not_outlive_us(folder: Path) -> None:
    setup = Setup(folder)
    async with setup.served() as server:
        pid = (await setup.started())["pid"]
        server.process.kill()
        await eventually(lambda: not is_running(pid))


def test_a_program_that_cannot_be_run_is_told_with_its_error(folder: Path) -> None:
    setup = Setup(folder)
    setup.program.write_bytes(b"\x7fELF but not really")
    done = subprocess.run(setup.command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "could not be started: Exec format error (errno 8)" in done.stderr


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("missing", "No such file or directory"),
        ("plain", "the file is not executable"),
        ("folder", "it is not a regular file"),
    ],
)
def test_a_path_that_is_no_program_ends_the_start_before_any_model(
    folder: Path, kind: str, problem: str
) -> None:
    setup = Setup(folder)
    if kind == "plain":
        setup.program.chmod(0o644)
    else:
        setup.program.unlink()
    if kind == "folder":
        setup.program.mkdir()
    command = [sys.executable, "-m", "luce", "serve", str(folder / "no-model.gguf")]
    command += ["--routing-gateway", str(setup.program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert problem in done.stderr


@pytest.mark.parametrize(("place", "option"), [(0, "--port"), (1, "--routing-engine-port")])
def test_a_taken_port_ends_the_start_before_any_model(
    folder: Path, place: int, option: str
) -> None:
    setup = Setup(folder)
    taken = (setup.public_port, setup.engine_port)[place]
    with socket.create_server(("127.0.0.1", taken)):
        done = subprocess.run(setup.command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5
    assert f":{taken}: it is in use" in done.stderr
    assert f"choose another {option}\n" in done.stderr
    assert "loads" not in done.stdout
    assert not (folder / "started").exists()
