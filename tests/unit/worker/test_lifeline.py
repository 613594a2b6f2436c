from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest


def start(code: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_process_dies_with_its_parent():
    """The grandchild shares no socket with anyone: only the kernel can tell it."""
    grandchild = """
        import os, time
        from luce.worker.lifeline import die_with_parent
        die_with_parent(os.getppid())
        print(os.getpid(), flush=True)
        time.sleep(200)
    """
    with start(
        f"""
        import subprocess, sys
        subprocess.run([sys.executable, "-c", {textwrap.dedent(grandchild)!r}])
        """
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").exists() and _state(pid) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_process_whose_parent_has_gone_already_ends_at_once():
    with start(
        """
        from luce.worker.lifeline import die_with_parent
        die_with_parent(1_000_000_000)
        print("survived")
        """
    ) as process:
        output, _ = process.communicate(timeout=60)
    assert output == ""
    assert process.returncode == -signal.SIGKILL


def test_sigint_is_ignored_and_each_sigterm_is_handed_on():
    with start(
        """
        import time
        from luce.worker.lifeline import leave_signals_to_listener
        leave_signals_to_listener(lambda: print("terminate", flush=True))
        print("up", flush=True)
        time.sleep(60)
        """
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.kill(process.pid, signal.SIGINT)
        for _ in range(2):
            os.kill(process.pid, signal.SIGTERM)
            assert process.stdout.readline() == "terminate\n"
        assert process.poll() is None
        process.kill()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
