"""Bug log, areas loader and cli: B69 damaged files, B71 readiness, B73 addresses, B75 names."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from case_client import minimal
from http_harness import CHAT, Harness, Rules, eventually
from server_process import SERVE_FAKE, fake_server

from luce.cli.main import main
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

Result = subprocess.CompletedProcess[str]
VERSION_AT, NUM_TENSORS_AT, FIRST_KEY_AT = 4, 8, 24
"""Where a GGUF file has these numbers."""


def run_luce(*words: object) -> Result:
    """`luce serve` until it ends by itself."""
    command = [sys.executable, "-m", "luce", "serve", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def said(result: Result) -> str:
    """The one line that says why it ended."""
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("luce: ")]
    assert len(lines) == 1, result.stderr
    return lines[0]


# --- B69 ---------------------------------------------------------------------------------------


def damaged(model: Path, folder: Path) -> dict[str, Path]:
    """Files that are no good model, by what is wrong with them."""
    whole = model.read_bytes()
    sizes = (0, 3, 100, 5000, len(whole) // 2, len(whole) - 1)
    contents = {f"cut_{size}": whole[:size] for size in sizes}
    contents["magic"] = b"FUGG" + whole[4:]
    contents["version"] = patched(whole, VERSION_AT, "<I", 99)
    contents["num_tensors"] = patched(whole, NUM_TENSORS_AT, "<Q", 2**40)
    contents["string_length"] = patched(whole, FIRST_KEY_AT, "<Q", 2**60)
    name = b"blk.0.attn_q.weight"
    offset_at = whole.index(name) + len(name) + 4 + 2 * 8 + 4
    contents["tensor_offset"] = patched(whole, offset_at, "<Q", 2**63)
    contents["text"] = b"This is a text file.\n" * 100
    files = {}
    for kind, content in contents.items():
        files[kind] = folder / f"{kind}.gguf"
        files[kind].write_bytes(content)
    files["folder"] = folder / "folder.gguf"
    files["folder"].mkdir()
    return files


def patched(whole: bytes, position: int, form: str, number: int) -> bytes:
    value = struct.pack(form, number)
    return whole[:position] + value + whole[position + len(value) :]


STARTED = ("cut_100", "tensor_offset")
"""Damages with which a whole server is started, workers and all; that takes seconds each."""


def test_case_b69_damaged_files_are_refused_with_one_line(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = damaged(tiny_path, tmp_path)
    for kind, path in files.items():
        assert main(["inspect", str(path)]) == 3, kind
        line = capsys.readouterr().err
        assert line.startswith("luce: "), (kind, line)
        assert line.count("\n") == 1, (kind, line)
        assert path.name in line, (kind, line)
        if kind.startswith("cut_") and path.stat().st_size > 100:
            assert str(path.stat().st_size) in line, (kind, line)


@pytest.mark.parametrize("kind", STARTED)
def test_case_b69_a_server_does_not_start_with_one(
    kind: str, tiny_path: Path, tmp_path: Path
) -> None:
    result = run_luce(damaged(tiny_path, tmp_path)[kind], "--port", 0)
    assert result.returncode == 3
    assert f"{kind}.gguf" in said(result)


# --- B71 ---------------------------------------------------------------------------------------


async def test_case_b71_readiness_is_what_a_request_would_meet(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    async with Harness(FakeScript(load_until_file=str(loaded)), wait_ready=False) as server:
        seen = set()
        for _ in range(3):
            health = await server.client.get("/health")
            listed = await server.client.get("/v1/models")
            asked = await server.client.post(CHAT, json=minimal(CHAT, max_tokens=1))
            seen.add((health.status_code, asked.status_code, listed.json()["data"][0]["state"]))
            assert health.json()["status"] == "loading"
            assert health.headers["retry-after"]
            assert asked.headers["retry-after"]
            assert (await server.client.get("/health/live")).status_code == 200
        assert seen == {(503, 503, "loading")}
        loaded.touch()
        await server.ready()
        assert (await server.client.get("/health")).status_code == 200
        assert (await server.client.get("/v1/models")).json()["data"][0]["state"] == "ready"
        assert (await server.ask("x", max_tokens=1)).status_code == 200


async def test_case_b71_health_is_quick_and_good_while_all_slots_are_busy() -> None:
    script = FakeScript(hold_after=1, max_concurrency=2)
    async with Harness(script, rules=Rules(queue_limit=4)) as server:
        asks = [asyncio.create_task(server.ask("x")) for _ in range(6)]
        await eventually(lambda: server.router.num_waiting == 4)
        for _ in range(11):
            assert (await server.client.get("/health")).status_code == 200
        assert not any(ask.done() for ask in asks)
        await server.let_go(*asks)


# --- B73 ---------------------------------------------------------------------------------------


@pytest.fixture
def taken_port() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def test_case_b73_a_taken_port_is_found_before_anything_is_read(
    tmp_path: Path, taken_port: int
) -> None:
    """The model does not even exist: nobody got that far."""
    result = run_luce(tmp_path / "missing.gguf", "--port", taken_port)
    assert result.returncode == 5
    assert f"127.0.0.1:{taken_port}" in said(result)


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (("--host", "999.1.1.1", "--port", "0"), 2, "999.1.1.1"),
        (("--port", "70000"), 2, "70000"),
        (("--port", "-1"), 2, "--port"),
    ],
)
def test_case_b73_an_address_that_cannot_be(
    tmp_path: Path, words: tuple[str, ...], code: int, named: str
) -> None:
    result = run_luce(tmp_path / "missing.gguf", *words)
    assert result.returncode == code
    assert named in said(result)


async def test_case_b73_port_0_picks_one_and_prints_it(tiny_path: Path) -> None:
    async with fake_server(tiny_path, {"m": {}}) as server:
        assert server.port > 0
        async with fake_server(tiny_path, {"m": {}}) as other:
            assert other.port != server.port
            assert (await other.client.get("/health")).status_code == 200


async def test_case_b73_an_ipv6_host(tiny_path: Path) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    setup = {
        "listener": {"host": "::1"},
        "models": [{"path": str(tiny_path), "name": "m"}],
        "script": {"vocab_size": 1000},
    }
    command = [sys.executable, str(SERVE_FAKE), json.dumps(setup)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line[line.index("http://[::1]:") :].split()[0]
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"{url}/health/live")).status_code == 200
    finally:
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


# --- B75 ---------------------------------------------------------------------------------------


def blocks(first: str, second: str, *more: str) -> list[str]:
    return [
        *("--load-balancing", "--load-balancing-primary-gpu", "cpu:0", *more),
        *("--model", "a.gguf", "--target-device", "cpu:0", "--model-name", first),
        *("--model", "b.gguf", "--target-device", "cpu:1", "--model-name", second),
    ]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (blocks("x", "x"), ("block 1 (x)", "block 2 (x)")),
        (blocks("x", "X"), ("block 1 (x)", "block 2 (X)")),
        (blocks("auto", "x"), ("--model-name", "auto")),
        (blocks("", "x"), ("--model-name",)),
        (["--max-ctx", "512", *blocks("x", "y")], ("--max-ctx",)),
        (blocks("x", "y", "--no-such-option"), ("--no-such-option",)),
        (blocks("x", "y", "--load-balancing-primary-gpu", "cpu:1"), ("--load-balancing-primary",)),
        (["--load-balancing-primary-gpu", "cpu:7", *blocks("x", "y")[3:]], ("cpu:7",)),
        (
            [word.replace("cpu:1", "cpu:0") for word in blocks("x", "y")],
            ("block 1 (x)", "block 2 (y)", "cpu:0"),
        ),
    ],
)
def test_case_b75_clashes_are_refused_before_anything_loads(
    words: list[str], named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """No file of these exists: a message about one would have come too late."""
    assert main(["serve", *words]) == 2
    error = capsys.readouterr().err
    assert "gguf" not in error.replace("a.gguf", "").replace("b.gguf", "")
    for name in named:
        assert name in error


def test_case_b75_an_option_given_twice_counts_last_and_is_noted(tmp_path: Path) -> None:
    """The case would refuse it. Launchers add options behind others to change them: see the
    page of differences."""
    missing = tmp_path / "missing.gguf"
    result = run_luce(missing, "--port", "0", "--max-ctx", "512", "--max-ctx", "1024")
    assert result.returncode == 3
    assert "--max-ctx is written more than once; the last one counts" in result.stderr


def test_case_b75_help_documents_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Names of models must differ" in text
    assert "none may be auto" in text
