from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap

import pytest

from luce.protocol.messages import LoadSpec
from luce.workers.spawn import ProcessLauncher

pytestmark = pytest.mark.anyio

SPEC = LoadSpec(name="m", path="m.gguf")
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("luce.workers.spawn._PUMP_PATIENCE_S", 60.0)


def python(code: str, lines: list[str], **options) -> ProcessLauncher:
    return ProcessLauncher(
        sys.executable, ("-c", textwrap.dedent(code)), write_line=lines.append, **options
    )


async def run(code: str, **options) -> tuple[int, list[str]]:
    lines: list[str] = []
    process = await python(code, lines, **options).launch(SPEC)
    code_ = await asyncio.wait_for(process.wait(), 60)
    process.sock.close()
    return code_, lines


async def test_the_worker_gets_the_other_end_of_the_socket():
    lines: list[str] = []
    launcher = python(
        """
        import socket, sys
        sock = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
        sock.sendall(sock.recv(5).upper())
        """,
        lines,
    )
    process = await launcher.launch(SPEC)
    with process.sock as sock:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"hello")
        assert await asyncio.wait_for(loop.sock_recv(sock, 5), 60) == b"HELLO"
        assert await asyncio.wait_for(loop.sock_recv(sock, 5), 60) == b""
    assert await process.wait() == 0


async def test_what_it_prints_carries_the_models_name():
    code, lines = await run(
        r"""
        import sys
        print("out")
        sys.stdout.flush()
        sys.stderr.write("err\nno newline \xff at the end")
        """
    )
    assert code == 0
    assert lines == ["[m] out", "[m] err", "[m] no newline \xff at the end"]


async def test_bytes_that_are_no_text_and_endless_lines_are_passed_on():
    _, lines = await run(
        "import os; os.write(1, b'\\xff\\n'); os.write(2, b'x' * 200_000)",
    )
    assert lines[0] == "[m] �"
    assert sum(line.count("x") for line in lines[1:]) == 200_000


async def test_the_environment_is_inherited_and_extended(monkeypatch):
    monkeypatch.setenv("LUCE_TEST_INHERITED", "yes")
    _, lines = await run(
        "import os; print(os.environ['LUCE_TEST_INHERITED'], os.environ['LUCE_TEST_OWN'])",
        env={"LUCE_TEST_OWN": "too"},
    )
    assert lines == ["[m] yes too"]


async def test_it_counts_devices_as_placement_does(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    _, lines = await run("import os; print(os.environ['CUDA_DEVICE_ORDER'])")
    assert lines == ["[m] PCI_BUS_ID"]


async def test_it_leads_its_own_process_group_and_reads_nothing():
    _, lines = await run("import os, sys; print(os.getpid() == os.getpgid(0), sys.stdin.read())")
    assert lines == ["[m] True "]


async def test_terminate_kill_and_their_exit_codes():
    for code, method, expected in (
        ("import time; print('up', flush=True); time.sleep(60)", "terminate", -signal.SIGTERM),
        (DEAF + "print('up', flush=True); time.sleep(60)", "kill", -signal.SIGKILL),
    ):
        lines: list[str] = []
        process = await python(code, lines).launch(SPEC)
        async with asyncio.timeout(60):
            while not lines:
                await asyncio.sleep(0.005)
        getattr(process, method)()
        assert await asyncio.wait_for(process.wait(), 60) == expected
        getattr(process, method)()
        process.sock.close()


async def test_kill_takes_the_grandchildren_too():
    lines: list[str] = []
    process = await python(
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(child.pid, flush=True)
        child.wait()
        """,
        lines,
    ).launch(SPEC)
    async with asyncio.timeout(60):
        while not lines:
            await asyncio.sleep(0.005)
    process.kill()
    await asyncio.wait_for(process.wait(), 60)
    process.sock.close()
    grandchild = int(lines[0].removeprefix("[m] "))
    async with asyncio.timeout(60):
        while _is_running(grandchild):
            await asyncio.sleep(0.01)


async def test_an_interpreter_that_cannot_run_leaks_no_descriptor():
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        await ProcessLauncher("/nonexistent/python").launch(SPEC)
    assert set(os.listdir("/proc/self/fd")) <= before


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
