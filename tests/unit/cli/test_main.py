"""The commands: what reaches the server, what is printed, and the exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

from luce import __version__
from luce.cli.main import INTERRUPTED, OUR_BUG, main, server_main
from luce.config.listener import ServerConfig
from luce.errors import ModelFileError, StartupError, UsageError


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """Stands in for the listener; holds the configurations it was called with."""
    calls: list[ServerConfig] = []

    def serve(config: ServerConfig) -> int:
        calls.append(config)
        return 0

    _install(monkeypatch, "luce.listener.server", serve=serve)
    return calls


def _install(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Callable[..., int]) -> None:
    module = ModuleType(name)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


def _failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def serve(_config: ServerConfig) -> int:
        raise error

    _install(monkeypatch, "luce.listener.server", serve=serve)


def test_listener_and_model_options_reach_the_server(served: list[ServerConfig]) -> None:
    assert server_main("m.gguf --port 9000 --max-ctx 512 --host 0.0.0.0".split()) == 0
    (config,) = served
    assert (config.listener.port, config.listener.host) == (9000, "0.0.0.0")
    assert (config.models[0].path, config.models[0].max_ctx) == (Path("m.gguf"), 512)


def test_listener_options_may_stand_before_the_first_model(served: list[ServerConfig]) -> None:
    assert server_main("--port 9000 --model m.gguf".split()) == 0
    assert served[0].listener.port == 9000


def test_the_first_block_wins_over_what_stands_before_it(served: list[ServerConfig]) -> None:
    assert server_main("--port 9000 --model m.gguf --port 9001".split()) == 0
    assert served[0].listener.port == 9001


def test_luce_serve_is_luce_server(served: list[ServerConfig]) -> None:
    assert main(["serve", "m.gguf", "--port", "1"]) == 0
    assert server_main(["m.gguf", "--port", "1"]) == 0
    assert served[0] == served[1]


def test_words_default_to_the_process_arguments(
    served: list[ServerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["luce_server", "m.gguf"])
    assert server_main() == 0
    assert served[0].models[0].path == Path("m.gguf")


def test_only_the_primary_is_served_and_the_rest_is_said(
    served: list[ServerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main("a --model-name big --model b --model-name small".split()) == 0
    assert [model.name for model in served[0].models] == ["big"]
    assert capsys.readouterr().err == (
        "luce_server: note: only block 1 (big) is served; unused without --load-balancing: "
        "block 2 (small)\n"
    )


TWO = "a --model-name big --target-device cpu:0 --model b --model-name small --target-device cpu:1"


def test_with_balancing_all_models_reach_the_server(served: list[ServerConfig]) -> None:
    line = f"--load-balancing {TWO} --load-balancing-primary-gpu cpu:1 --no-prefix-cache"
    assert server_main(line.split()) == 0
    assert [model.name for model in served[0].models] == ["small", "big"]
    assert [model.prefix_cache for model in served[0].models] == [False, True]
    assert served[0].routing.load_balancing


def test_the_environment_is_read(
    served: list[ServerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUCE_PORT", "9123")
    monkeypatch.setenv("LUCE_MODEL_NAME", "from-outside")
    assert server_main(["m.gguf"]) == 0
    assert (served[0].listener.port, served[0].models[0].name) == (9123, "from-outside")


def test_a_configuration_file_reaches_the_server(
    served: list[ServerConfig], tmp_path: Path
) -> None:
    file = tmp_path / "luce.toml"
    file.write_text("port = 9123\n[[model]]\nmodel = 'm.gguf'")
    assert server_main(["--config", str(file)]) == 0
    assert (served[0].listener.port, served[0].models[0].path) == (9123, tmp_path / "m.gguf")


@pytest.mark.parametrize("flag", ["--print-config", "--print-config=text"])
def test_print_config_prints_and_serves_nothing(
    flag: str, served: list[ServerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main(f"{TWO} {flag}".split()) == 0
    output = capsys.readouterr()
    assert output.out.startswith("the launch\n  --model-routing ")
    assert "block 2 (small): unused" in output.out
    assert output.err.startswith("luce_server: note: only block 1 (big) is served")
    assert served == []


def test_print_config_as_json_is_json_alone(
    served: list[ServerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"serve {TWO} --print-config=json".split()) == 0
    assert len(json.loads(capsys.readouterr().out)["models"]) == 2
    assert served == []


def test_print_config_of_the_demo_needs_no_demo(
    served: list[ServerConfig],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("luce.cli.main.locate_demo", lambda _config: pytest.fail("looked up"))
    assert server_main(["--demo", "--print-config"]) == 0
    assert "the demo model" in capsys.readouterr().out
    assert served == []


def test_a_repeated_option_is_said(
    served: list[ServerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main("a --chunk 32 --chunk 64".split()) == 0
    assert served[0].models[0].chunk == 64
    assert "block 1 (a): --chunk is written more than once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("", "no model given"),
        ("--port 1", "no model given"),
        ("--bogus", "unknown option --bogus"),
        ("m.gguf --bogus", "block 1 (m.gguf): unknown option --bogus"),
        ("m.gguf --port abc", "block 1 (m.gguf): --port: 'abc' is not a whole number"),
        ("m.gguf --port 70000", "--port: 70000 is out of range, 0 to 65535"),
        ("--port 70000 --model m", "before the first model: --port: 70000 is out of range"),
        ("m.gguf --host 999.1.1.1", "no IPv4 address"),
        ("m.gguf --model", "block 2: --model needs the path"),
        ("--max-ctx 512 --model m", "--max-ctx belongs to a model"),
        ("a --model b --model-name b --port 1", "block 2 (b): --port belongs in the first"),
        ("--load-balancing a --model b", "block 1 (luce): --load-balancing needs a --target-"),
        ("--load-balancing a", "needs two models or more; there is only block 1 (luce)"),
        ("a --model-name x --model b --model-name X", "block 1 (x) and block 2 (X)"),
        ("a --load-balancing-primary-gpu cuda:0", "matches no model block: block 1 (luce) is on"),
        ("a --load-balancing-primary-gpu", "--load-balancing-primary-gpu needs a value"),
        ("a --print-config --chunk 1", "block 1 (a): --chunk: 1 is out of range"),
        ("--config nowhere.toml", "cannot read nowhere.toml: No such file or directory"),
        ("a --model b --model-name auto", "block 2 (auto)"),
        ("a --model b --model-name b --chunk 1", "block 2 (b): --chunk: 1 is out of range"),
        ("a --target-device auto:0", "'auto:0' names no device"),
        ("a --primary-gpu cpu:0", "unknown option --primary-gpu"),
        ("a --next-model b", "unknown option --next-model; did you mean --model?"),
        ("a --load-balancing-next-model b", "unknown option --load-balancing-next-model"),
        ("a b", "unexpected word 'b'"),
    ],
)
def test_wrong_command_lines_end_with_one_line_and_2(
    line: str, part: str, served: list[ServerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_main(line.split()) == UsageError.exit_code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("luce_server: ")
    assert output.err.count("\n") == 1
    assert part in output.err
    assert served == []


@pytest.mark.parametrize("error", StartupError.__subclasses__())
def test_startup_errors_end_with_their_code(
    error: type[StartupError],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _failing(monkeypatch, error("what\nis wrong"))
    assert server_main(["m.gguf"]) == error.exit_code
    assert capsys.readouterr().err == "luce_server: what is wrong\n"


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    _failing(monkeypatch, KeyboardInterrupt())
    assert server_main(["m.gguf"]) == INTERRUPTED == 130


def test_our_own_bugs_are_one_line_that_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LUCE_DEBUG", raising=False)
    _failing(monkeypatch, ZeroDivisionError("secret"))
    assert server_main(["m.gguf"]) == OUR_BUG == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("luce_server: this is a bug of luce (ZeroDivisionError); please report")
    assert "LUCE_DEBUG=1" in line


def test_the_traceback_of_our_own_bugs_comes_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LUCE_DEBUG", "1")
    _failing(monkeypatch, ZeroDivisionError("secret"))
    assert server_main(["m.gguf"]) == OUR_BUG
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2] == "ZeroDivisionError: secret"
    assert "please report it" in lines[-1]


def test_control_characters_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(["m.gguf", "--model-name", "a\x01\x1b[2Jb"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("luce_server: block 1 (a\\x01\\x1b[2Jb): --model-name: ")
    assert server_main(["m\x1b.gguf", "--print-config"]) == 0
    printed = capsys.readouterr().out
    assert "m\\x1b.gguf" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    "line", ["--help", "-h", "m.gguf --help", "--bogus --help", "--list-devices --help"]
)
def test_server_help(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert server_main(line.split()) == 0
    output = capsys.readouterr()
    assert output.out.startswith("usage: luce_server MODEL")
    assert output.err == ""


@pytest.mark.parametrize(("run", "program"), [(server_main, "luce_server"), (main, "luce")])
def test_version(
    run: Callable[[list[str]], int], program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"{program} {__version__}\n"


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_luce_help(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    assert "luce inspect MODEL" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["devices", "plan", "inspect", "bench"])
def test_each_subcommand_has_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: luce {name} ")


@pytest.mark.parametrize(
    ("words", "part"),
    [([], "no subcommand"), (["serv"], "subcommand 'serv'"), (["--foo"], "option '--foo'")],
)
def test_unknown_subcommand(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert part in error
    assert "serve, devices, plan, inspect, bench" in error


def test_inspect_is_called_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Path, bool]] = []

    def inspect(path: Path, as_json: bool) -> int:
        calls.append((path, as_json))
        return 0

    _install(monkeypatch, "luce.cli.inspect", inspect=inspect)
    assert main(["inspect", "m.gguf", "--json"]) == 0
    assert calls == [(Path("m.gguf"), True)]


def test_tool_errors_carry_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bench(_arguments: object) -> int:
        raise ModelFileError("m.gguf: no such file")

    _install(monkeypatch, "luce.cli.bench", bench=bench)
    assert main(["bench", "m.gguf"]) == 3
    assert capsys.readouterr().err == "luce: m.gguf: no such file\n"
