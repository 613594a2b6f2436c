"""The whole listener as a process: start, exit codes, signals, a worker that comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from luce.testing.tiny_models import tiny_llama

HERE = Path(__file__).parent
SLOW_STREAM = {"reply": [97] * 400, "token_delay_s": 0.01, "max_concurrency": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


class Server:
    """A running `serve_fake`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def wait_for(self, pattern: str, timeout_s: float = 60) -> str:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            match = re.search(pattern, "".join(self.lines))
            if match:
                return match[0]
            time.sleep(0.01)
        raise AssertionError(f"no {pattern!r} in {self.lines}")

    @property
    def url(self) -> str:
        return self.wait_for(r"http://127\.0\.0\.1:\d+")

    def ready(self) -> str:
        self.wait_for("ready:")
        return self.url

    def end(self, timeout_s: float = 60) -> tuple[int, str]:
        """Wait for the process; its exit code and what it wrote to stderr."""
        code = self.process.wait(timeout_s)
        self._reader.join(60)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()


@contextmanager
def serving(model: Path, script: dict[str, Any], **listener: Any) -> Iterator[Server]:
    setup = {
        "listener": listener,
        "models": [{"path": str(model), "name": "tiny"}],
        "script": {"vocab_size": 1000, **script},
    }
    process = subprocess.Popen(
        [sys.executable, str(HERE / "serve_fake.py"), json.dumps(setup)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Server(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def resident_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]


@pytest.mark.parametrize("unit", ["one two ", "<|im_", "x"])
def test_a_huge_prompt_holds_up_nobody(demo_model: Path, unit: str) -> None:
    with serving(demo_model, {"vocab_size": 49152}) as server:
        url = server.ready()
        before = resident_mib(server.process.pid)
        content = unit * (20_000_000 // len(unit))
        body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
        answers: list[httpx2.Response] = []

        def send() -> None:
            answers.append(httpx2.post(f"{url}/v1/chat/completions", content=body, timeout=60))

        sender = threading.Thread(target=send)
        num_meanwhile, slowest_s = 0, 0.0
        with httpx2.Client(timeout=60) as client:
            assert client.get(f"{url}/health").status_code == 200
            began = time.monotonic()
            sender.start()
            while sender.is_alive():
                started = time.monotonic()
                assert client.get(f"{url}/health").status_code == 200
                slowest_s = max(slowest_s, time.monotonic() - started)
                num_meanwhile += sender.is_alive()
        sender.join()
        error = answers[0].json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert len(re.findall(r"\d+", error["message"])) == 2
        assert num_meanwhile >= 5
        assert slowest_s < max(2.0, (time.monotonic() - began) / 2)
        assert resident_mib(server.process.pid) - before < 300


def ask(url: str, **fields: Any) -> httpx2.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def start_stream(url: str) -> tuple[threading.Thread, list[str]]:
    """Read a stream in a thread; the list grows by its lines."""
    lines: list[str] = []

    def read() -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        with httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                lines.extend([line])  # One by one: the test reads along.

    thread = threading.Thread(target=read)
    thread.start()
    return thread, lines


def wait_for_first(lines: list[str]) -> None:
    until = time.monotonic() + 60
    while not lines:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_start_ready_and_orderly_end(model: Path, tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    with serving(model, {"load_until_file": str(loaded)}) as server:
        health = httpx2.get(f"{server.url}/health", timeout=60)
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        server.wait_for("tiny: loading")
        loaded.touch()
        url = server.ready()
        assert "curl" in server.wait_for(rf"curl {re.escape(url)}/v1/chat/completions .*")
        assert httpx2.get(f"{url}/health", timeout=60).status_code == 200
        answer = ask(url, max_tokens=3)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "tiny"
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        rss_kib = int(re.findall(r"VmRSS:\s+(\d+)", status)[0])
        assert rss_kib < 90 * 1024
        server.process.send_signal(signal.SIGTERM)
        code, stderr = server.end()
        assert code == 0
        assert "heavy modules: []" in stderr
        assert 'msg="request finished"' in stderr
        assert "hi" not in re.findall(r"content=\S+", stderr)


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ({"load_error": "ModelFileError", "load_message": "x.gguf is torn."}, 3, "x.gguf is torn."),
        ({"load_error": "PlacementError", "load_message": "needs 9 GiB."}, 4, "needs 9 GiB."),
        ({"crash": "load"}, 6, "did not come up"),
        ({"crash": "start"}, 6, "did not come up"),
    ],
)
def test_failed_start(model: Path, script: dict[str, Any], code: int, says: str) -> None:
    with serving(model, script) as server:
        got, stderr = server.end()
        assert got == code
        assert says in stderr.splitlines()[-1]
        assert "Traceback" not in stderr


def test_text_side_that_does_not_load(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 8)
    with serving(broken, {"load_s": 30.0}) as server:
        code, stderr = server.end()
        assert code == 3
        assert "broken.gguf" in stderr.splitlines()[-1]
        assert "Traceback" not in stderr


def test_port_in_use_is_found_before_anything_is_read(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run(
            [sys.executable, "-m", "luce", "serve", str(model), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert result.returncode == 5
    assert f"127.0.0.1:{port}" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def stops_accepting(url: str) -> None:
    """Wait until it has taken notice of the first signal."""
    port = int(url.rsplit(":", 1)[1])
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionError:
            return
        assert time.monotonic() < until
        time.sleep(0.01)


def test_sigterm_lets_running_requests_finish_and_refuses_waiting_ones(
    model: Path, tmp_path: Path
) -> None:
    may_end = tmp_path / "may end"
    script = {"reply": [97] * 300, "hold_after": 5, "hold_until_file": str(may_end)}
    with serving(model, {**script, "max_concurrency": 1}) as server:
        url = server.ready()
        thread, lines = start_stream(url)
        wait_for_first(lines)
        waiting: list[int] = []
        waiter = threading.Thread(target=lambda: waiting.append(ask(url).status_code))
        waiter.start()
        while not httpx2.get(f"{url}/status/json", timeout=60).json()["waiting"]:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        waiter.join(60)
        assert waiting == [503]
        may_end.touch()
        thread.join(60)
        assert lines[-2] == "data: [DONE]"
        assert '"finish_reason":"stop"' in lines[-4]
        assert server.end()[0] == 0


def test_grace_that_runs_out_is_an_error_end(model: Path) -> None:
    script = {**SLOW_STREAM, "reply": [97] * 4000}
    with serving(model, script, shutdown_grace_s=1) as server:
        url = server.ready()
        thread, lines = start_stream(url)
        wait_for_first(lines)
        started = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        thread.join(60)
        assert 0.8 < time.monotonic() - started < 30  # By itself it would end after 40 seconds.
        assert "shutting_down" in lines[-4]
        assert lines[-2] == "data: [DONE]"
        assert server.end()[0] == 0


def test_second_signal_ends_at_once(model: Path) -> None:
    script = {**SLOW_STREAM, "reply": [97] * 4000, "ignore_shutdown": True}
    with serving(model, script) as server:
        url = server.ready()
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        client = httpx2.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60)
        with client as answer:
            next(line for line in answer.iter_lines() if line.startswith("data:"))
            server.process.send_signal(signal.SIGTERM)
            server.wait_for(
                r"stopping: 1 answer is finished first, which may take 30 s; a second Ctrl-C or "
                "SIGTERM ends it at once\n"
            )
            stops_accepting(url)
            assert server.process.poll() is None
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.end()[0] == 0
            assert time.monotonic() - started < 30


def test_second_signal_ends_running_answers_with_an_error(model: Path) -> None:
    script = {**SLOW_STREAM, "reply": [97] * 4000}
    with serving(model, script, shutdown_grace_s=100) as server:
        url = server.ready()
        thread, lines = start_stream(url)
        wait_for_first(lines)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("which may take 100 s")
        server.process.send_signal(signal.SIGINT)
        thread.join(60)
        assert "shutting_down" in lines[-4]
        assert lines[-2] == "data: [DONE]"
        code, log = server.end()
        assert code == 0
        assert server.lines[-1] == "stopping at once\n"
        assert 'msg="answers are cut off" answers=1' in log


def test_half_sent_request_does_not_hold_up_the_end(model: Path) -> None:
    with serving(model, {}) as server:
        url = server.ready()
        port = int(url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 99\r\n\r\n{")
            time.sleep(0.1)
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.end()[0] == 0
            assert time.monotonic() - started < 20
            assert server.lines[-1] == "stopping\n"


def test_signal_while_loading(model: Path) -> None:
    with serving(model, {"load_s": 60.0}) as server:
        httpx2.get(f"{server.url}/health", timeout=60)
        server.process.send_signal(signal.SIGTERM)
        assert server.end()[0] == 0


def test_killed_worker_comes_back(model: Path, tmp_path: Path) -> None:
    once, loaded = tmp_path / "crashed", tmp_path / "loaded"
    loaded.touch()
    script = {"crash": "admitted", "crash_once_file": str(once), "load_until_file": str(loaded)}
    with serving(model, script) as server:
        url = server.ready()
        loaded.unlink()
        assert ask(url).status_code == 503
        assert httpx2.get(f"{url}/health", timeout=60).status_code == 503
        loaded.touch()
        until = time.monotonic() + 60
        while httpx2.get(f"{url}/health", timeout=60).status_code != 200:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert ask(url, max_tokens=2).status_code == 200


def test_no_worker_survives_a_killed_listener(model: Path) -> None:
    with serving(model, {"ignore_shutdown": True}) as server:
        server.ready()
        children = subprocess.run(
            ["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True
        ).stdout.split()
        assert children
        server.process.kill()
        until = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert not os.path.exists(f"/proc/{children[0]}")
