"""Whole command lines become checked configurations, before any model file is touched."""

from __future__ import annotations

import builtins
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from luce.cli import resolve as module
from luce.cli.launch import read_launch
from luce.cli.resolve import locate_demo, resolve
from luce.config.listener import ServerConfig
from luce.config.load import Loaded
from luce.config.model import DEMO_MODEL
from luce.errors import UsageError

TWO = "a --model-name big --target-device cpu:0 --model b --model-name small --target-device cpu:1"


def resolved(line: str, environment: Mapping[str, str] | None = None) -> Loaded:
    return resolve(read_launch(line.split()), environment or {})


def names(loaded: Loaded) -> list[str]:
    return [model.name for model in loaded.config.models]


def test_the_command_line_of_two_models() -> None:
    loaded = resolved(
        "--load-balancing --load-balancing-primary-gpu cpu:1 "
        "--model A.gguf --model-name big --target-device cpu:0 --max-ctx 4096 "
        "--max-concurrency 4 --kv-pool-tokens 16384 "
        "--host 127.0.0.1 --port 8080 --routing-queue-limit 32 "
        "--model B.gguf --model-name small --target-device cpu:1 --max-ctx 8192 "
        "--max-concurrency 1"
    )
    config = loaded.config
    assert names(loaded) == ["small", "big"]
    assert [(model.max_ctx, model.max_concurrency) for model in config.models] == [
        (8192, 1),
        (4096, 4),
    ]
    assert (config.listener.port, config.listener.routing_queue_limit) == (8080, 32)
    assert config.routing.load_balancing
    assert loaded.notes == ()


@pytest.mark.parametrize(
    "line",
    [
        f"--load-balancing {TWO}",
        f"{TWO} --load-balancing",
        TWO.replace("--model b", "--load-balancing --model b"),
        TWO.replace("--model-name big", "--load-balancing --model-name big"),
        f"--load-balancing --model {TWO}",
    ],
)
def test_balancing_may_be_written_anywhere(line: str) -> None:
    assert names(resolved(line)) == ["big", "small"]


def test_the_first_path_may_follow_a_launch_option() -> None:
    loaded = resolved("--load-balancing-primary-gpu cpu m.gguf --chunk 64")
    assert (loaded.config.models[0].path, loaded.config.models[0].chunk) == (Path("m.gguf"), 64)


def test_server_options_count_from_the_first_block_even_if_it_is_not_served() -> None:
    line = f"--load-balancing-primary-gpu cpu:1 {TWO.replace('--model b', '--port 7 --model b')}"
    loaded = resolved(line)
    assert (names(loaded), loaded.config.listener.port) == (["small"], 7)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--load-balancing", "no model given"),
        ("--load-balancing a --model-name big --target-device cpu", "only block 1 (big)"),
        ("--load-balancing a --model b", "block 1 (luce): --load-balancing needs a --target-dev"),
        (f"--load-balancing {TWO} --target-device auto",
         "block 2 (small): --target-device auto chooses for one model"),
        (f"--load-balancing {TWO} --model-name BIG", "--model-name must be unique: block 1 (big)"),
        (f"{TWO} --model-name big", "block 1 (big) and block 2 (big) have the same one"),
        (f"{TWO} --model-name auto", "block 2 (auto): --model-name: 'auto' is reserved"),
        (f"{TWO} --model-name=", "block 2 (b): --model-name: the value is empty"),
        (f"{TWO} --port 1", "block 2 (small): --port belongs in the first model block"),
        (f"{TWO} --routing-queue-limit 1", "--routing-queue-limit belongs in the first"),
        (f"--load-balancing {TWO} --chunk 1", "block 2 (small): --chunk: 1 is out of range"),
        (f"--load-balancing-primary-gpu cpu:2 {TWO}", "matches no model block: block 1 (big)"),
        (f"--load-balancing-primary-gpu cpu {TWO} --target-device cpu",
         "matches several model blocks: block 1 (big) and block 2 (small)"),
        (f"--load-balancing {TWO} --no-prefix-cache=1", "--no-prefix-cache takes no value"),
        (f"--load-balancing {TWO} --model", "block 3: --model needs the path"),
        (f"--load-balancing {TWO} --specla", "block 2 (small): unknown option --specla"),
        ("a --uds s --port 1", "--uds and --port exclude each other"),
        ("a --uds s --host ::1", "--uds and --host exclude each other"),
        ("a --tls-key k", "--tls-key needs the certificate it belongs to"),
        ("a --no-cors --cors-origin *", "--no-cors and --cors-origin exclude each other"),
        (f"{TWO} --api-key k", "block 2 (small): --api-key belongs in the first model block"),
        (f"{TWO} --primary-gpu cpu:0", "unknown option --primary-gpu; did you mean --load-bal"),
    ],
)  # fmt: skip
def test_what_is_refused(line: str, problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        resolved(line)
    assert problem in str(raised.value)


def test_lists_before_the_first_model_and_in_it_are_put_together() -> None:
    listener = resolved("--api-key a --port 1 --model m --api-key b --port 2").config.listener
    assert (listener.api_key, listener.port) == (("a", "b"), 2)


def test_a_port_of_the_environment_does_not_matter_beside_a_unix_socket() -> None:
    listener = resolved("a --uds s", {"LUCE_PORT": "1", "LUCE_HOST": "::1"}).config.listener
    assert listener.uds == Path("s")


def test_unnamed_blocks_are_no_clash_while_one_is_served() -> None:
    loaded = resolved("a --model b")
    assert loaded.config.models[0].path == Path("a")
    assert loaded.notes == (
        "only block 1 (luce) is served; unused without --load-balancing: block 2 (luce)",
    )


def test_the_prefix_cache_is_switched_off_for_one_model() -> None:
    loaded = resolved(f"--load-balancing {TWO} --no-prefix-cache")
    assert [model.prefix_cache for model in loaded.config.models] == [True, False]


@pytest.fixture
def luce_toml(tmp_path: Path) -> Path:
    path = tmp_path / "luce.toml"
    path.write_text(
        "load-balancing = true\nport = 1\nhost = '::1'\n"
        "[[model]]\nmodel = 'a'\nmodel-name = 'filed-a'\ntarget-device = 'cpu:0'\n"
        "[[model]]\nmodel = 'b'\nmodel-name = 'filed-b'\ntarget-device = 'cpu:1'\n"
    )
    return path


def test_a_file_alone(luce_toml: Path) -> None:
    loaded = resolved(f"--config {luce_toml}")
    assert names(loaded) == ["filed-a", "filed-b"]
    assert loaded.config.models[0].path == luce_toml.parent / "a"
    assert (loaded.config.listener.port, loaded.notes) == (1, ())


def test_a_file_below_the_command_line(luce_toml: Path) -> None:
    loaded = resolved(
        f"--port 2 --config={luce_toml} --load-balancing-primary-gpu cpu:1", {"LUCE_HOST": "::2"}
    )
    assert names(loaded) == ["filed-b", "filed-a"]
    assert (loaded.config.listener.port, loaded.config.listener.host) == (2, "::1")
    assert names(resolved(f"--config {luce_toml} --no-load-balancing")) == ["filed-a"]


def test_models_of_the_command_line_replace_those_of_the_file(luce_toml: Path) -> None:
    loaded = resolved(f"{TWO} --config {luce_toml}")
    assert names(loaded) == ["big", "small"]
    assert loaded.notes == (
        f"the models of {luce_toml} are not used: the command line names its own",
    )


def test_a_models_option_without_a_model_says_where_it_belongs(luce_toml: Path) -> None:
    with pytest.raises(UsageError, match="before the first model: --max-ctx belongs to a model"):
        resolved(f"--config {luce_toml} --max-ctx 64")


def test_the_file_is_checked_even_when_its_models_are_replaced(luce_toml: Path) -> None:
    luce_toml.write_text("[[model]]\nmodel = 'a'\nmax-ctx = 1")
    with pytest.raises(UsageError, match=r"\[\[model\]\] 1 of .*: max-ctx: 1 is out of range"):
        resolved(f"m.gguf --config {luce_toml}")


def test_variables_stand_below_everything_written() -> None:
    environment = {"LUCE_PORT": "5", "LUCE_MAX_CTX": "64"}
    loaded = resolved("m.gguf --max-ctx 128", environment)
    assert (loaded.config.listener.port, loaded.config.models[0].max_ctx) == (5, 128)


def test_repetitions_are_said_first() -> None:
    loaded = resolved("a --chunk 32 --chunk 64 --model b")
    assert loaded.config.models[0].chunk == 64
    assert loaded.notes[0] == "block 1 (a): --chunk is written more than once; the last one counts"
    assert len(loaded.notes) == 2


def test_no_file_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any, **_keywords: Any) -> None:
        pytest.fail("a file was opened")

    for owner, name in ((builtins, "open"), (io, "open"), (Path, "stat"), (Path, "exists")):
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr(module, "find_demo_model", refuse)
    resolved(f"--load-balancing {TWO} --chat-template-file t.jinja --demo --target-device cpu")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Path:
    path = Path("demo.gguf")
    monkeypatch.setattr(module, "find_demo_model", lambda: path)
    return path


def located(line: str) -> ServerConfig:
    return locate_demo(resolved(line).config)


def test_the_demo_model_is_looked_up_when_it_is_served(demo: Path) -> None:
    assert resolved("--demo").config.models[0].path == DEMO_MODEL
    assert located("--demo").models[0].path == demo
    config = located(f"--load-balancing {TWO} --demo --model-name c --target-device cpu:2")
    assert [model.path for model in config.models] == [Path("a"), Path("b"), demo]


def test_an_unused_demo_model_need_not_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise UsageError("not installed")

    monkeypatch.setattr(module, "find_demo_model", missing)
    assert located("m.gguf --demo --model-name d").models[0].path == Path("m.gguf")
    with pytest.raises(UsageError, match="not installed"):
        located("--demo --model m.gguf")
