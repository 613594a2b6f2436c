"""The real commands in a process of their own: one line on stderr, and the exit code."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from luce.testing.tiny_models import tiny_llama

SERVER = "import sys; from luce.cli.main import server_main; sys.exit(server_main())"


def run_server(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `luce_server` until it ends by itself."""
    command = [sys.executable, "-c", SERVER, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def children_cpu_s() -> float:
    """What processes that have ended computed: how busy the machine was otherwise is not in it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def assert_refused(result: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """It ended with `code` and a last line that holds all `parts`, and no traceback."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("luce_server: ")]
    assert len(lines) == 1, result.stderr
    for part in parts:
        assert part in lines[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


def test_no_arguments() -> None:
    assert_refused(run_server(), 2, "no model given", "--demo")


def test_unknown_option(model: Path) -> None:
    assert_refused(run_server(model, "--bogus"), 2, "unknown option --bogus")


def test_bad_value(model: Path) -> None:
    assert_refused(run_server(model, "--port", "http"), 2, "--port", "'http'")


def test_missing_file(tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    assert_refused(run_server(missing, "--port", "0"), 3, str(missing))


@pytest.mark.parametrize("path", ["/dev/zero", "pipe"])
def test_what_is_no_file_is_not_opened(path: str, model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = run_server(model, "--port", "0", "--chat-template-file", tmp_path / path)
    assert_refused(result, 3, path, "is not a regular file")
    assert_refused(run_server(tmp_path / path, "--port", "0"), 3, path, "is not a regular file")


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ("--chat-template-file none", 3, "--chat-template-file: {}/none: there is no such file"),
        ("--chat-template-file loop", 3, "loop: cannot be read: Too many levels of symbolic"),
        ("--chat-template-file broken.jinja", 3, "broken.jinja: syntax error on line 1"),
        ("--model-cards none", 3, "--model-cards: {}/none: there is no folder of model"),
        ("--model-cards .", 3, "tiny-llama.json: max_tokens is missing"),
        ("--model-cards good --reasoning-effort-high 40", 2, "effort high has fewer tokens (40)"),
    ],
)
def test_files_of_options_are_looked_at_before_anybody_could_come(
    words: str, code: int, problem: str, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "broken.jinja").write_text("{% if", encoding="ascii")
    card = '{"name": "x", "source": "y", "verified_at": "z"'
    (tmp_path / "tiny-llama.json").write_text(card + "}", encoding="ascii")
    (tmp_path / "good").mkdir()
    tiers = ', "max_tokens": 1000, "reasoning_effort_tiers": {"low": 50}}'
    (tmp_path / "good" / "tiny-llama.json").write_text(card + tiers, encoding="ascii")
    flag, name, *more = words.split()
    result = run_server(model, "--port", "0", flag, tmp_path / name, *more)
    assert_refused(result, code, problem.format(tmp_path))
    assert result.stdout == ""


def test_directory_without_config(tmp_path: Path) -> None:
    assert_refused(run_server(tmp_path, "--port", "0"), 3, "config.json")


def two_blocks(first: Path, second: Path) -> list[str | Path]:
    """Two blocks that may be balanced, on a free port."""
    return ["--model", first, "--model-name", "big", "--target-device", "cpu:0", "--port", "0",
            "--model", second, "--model-name", "small", "--target-device", "cpu:0"]  # fmt: skip


@pytest.mark.parametrize("refusal", ["--specla", "--next-model=x", "--port=1", "--chunk=1"])
def test_balanced_blocks_are_refused_before_a_file_is_touched(refusal: str, tmp_path: Path) -> None:
    missing = two_blocks(tmp_path / "missing.gguf", tmp_path / "missing-too.gguf")
    result = run_server("--load-balancing", *missing, refusal)
    assert_refused(result, 2, "block 2 (small)", refusal.split("=")[0])


def test_balanced_blocks_that_are_right_reach_loading(model: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    result = run_server(*two_blocks(model, missing), "--load-balancing")
    assert_refused(result, 3, str(missing))


def test_a_configuration_file_is_refused_before_a_model_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "luce.toml"
    file.write_text("prot = 0\n[[model]]\nmodel = 'missing.gguf'")
    assert_refused(run_server("--config", file), 2, str(file), "unknown key prot; write port")


@pytest.mark.parametrize("words", [["--host", "999.1.1.1"], ["--port", "70000"]])
def test_an_address_that_cannot_be_is_refused_within_a_second(
    words: list[str], tmp_path: Path
) -> None:
    begin = children_cpu_s()
    result = run_server(tmp_path / "missing.gguf", *words)
    assert children_cpu_s() - begin < 2
    assert_refused(result, 2, *words)


def test_port_in_use_is_noticed_before_the_model_is_read(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        begin = children_cpu_s()
        result = run_server(model, "--port", str(port))
        assert children_cpu_s() - begin < 5
    assert_refused(result, 5, "127.0.0.1", str(port))


def test_context_larger_than_the_models(model: Path) -> None:
    result = run_server(model, "--port", "0", "--max-ctx", "1000000")
    assert_refused(result, 2, "1000000", "--max-ctx")


def test_help_comes_at_once() -> None:
    begin = children_cpu_s()
    result = run_server("--help")
    assert children_cpu_s() - begin < 2
    assert result.returncode == 0
    assert result.stderr == ""
    assert "--max-concurrency" in result.stdout


def test_nothing_heavy_is_imported_for_the_command_line() -> None:
    heavy = ("torch", "rich", "numpy", "starlette", "uvicorn", "msgspec", "tokenizers")
    code = (
        "import sys; from luce.cli.main import server_main;"
        "server_main(['m.gguf', '--print-config']); server_main(['--help']);"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_print_config_survives_letters_that_the_terminal_lacks(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVER, b"\xff\xc3\xa9.gguf", "--model-name", "\u00e9"]
    result = subprocess.run(
        [*command, "--print-config"],
        capture_output=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"block 1 (\\xe9): primary" in result.stdout


@pytest.mark.parametrize("subject", ["help", "inspect", "inspect --json"])
def test_a_reader_that_goes_away_is_no_error(subject: str, model: Path) -> None:
    command = [sys.executable, "-c", SERVER, "--help"]
    if subject != "help":
        command = [sys.executable, "-m", "luce", *subject.split(), str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


def test_python_dash_m() -> None:
    command = [sys.executable, "-m", "luce", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout.split()[0]) == (0, "luce")
