"""Configuration files: every flag is a key, and what is wrong is named by file, table and key."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luce.config.model import DEMO_MODEL
from luce.config.option import Option
from luce.config.setting import Setting, Settings, Source, values_of
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS, ROUTING_OPTIONS
from luce.config.toml_file import read_file
from luce.config.written import Written
from luce.errors import UsageError
from luce.option_file import MAX_FILE_BYTES

Write = Callable[[str], Path]

EXAMPLES: dict[str, object] = {
    "host": "::1",
    "model-name": "small",
    "profile": "small-cpu",
    "target-device": "cuda:1",
    "load-balancing-primary-gpu": "hip:0",
    "device-memory": "cpu:0=1GiB",
    "device-inventory": "devices.toml",
    "routing-gateway": "gateway",
    "model-routing": "name",
    "unknown-model": "primary",
    "swap-keep-weights": "a,b",
    "admission-policy": "proceed",
    "pin": "a",
    "preload": "b",
    "dtype": "float16",
    "cache-type-k": "q8_0",
    "prefix-snapshot-memory": "2GiB",
    "cache-type-v": "f16",
    "chat-template-file": "chat.jinja",
    "model-cards": "cards",
    "uds": "luce.sock",
    "tls-cert": "cert.pem",
    "tls-key": "key.pem",
    "api-key": "sk-1",
    "api-key-file": "keys",
    "cors-origin": "https://a.example",
}


def example(option: Option) -> object:
    """A value of the option's key that is not its default."""
    if option.is_switch:
        return not option.default
    if option.kind is int:
        return option.lowest + 1
    return EXAMPLES[option.key]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_text(text: str) -> Path:
        path = tmp_path / "luce.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_text


def problem_of(path: Path) -> str:
    """The refusal, with the file's folder cut off."""
    with pytest.raises(UsageError) as raised:
        read_file(path)
    return str(raised.value).replace(f"{path.parent}/", "")


def check_field(found: Settings, option: Option, path: Path) -> None:
    value: Any = example(option)
    expected = path.parent / value if option.kind is Path else value
    if option.is_list:
        expected = (value,)
    assert found[option.field] == Setting(expected, Source.FILE, str(path))


@pytest.mark.parametrize("underscores", [False, True])
@pytest.mark.parametrize("option", ROUTING_OPTIONS + LISTENER_OPTIONS, ids=lambda o: o.key)
def test_every_flag_of_the_launch_and_the_server_is_a_key(
    option: Option, underscores: bool, write: Write
) -> None:
    key = option.key.replace("-", "_") if underscores else option.key
    path = write(f"{key} = {json.dumps(example(option))}")
    written = read_file(path)
    check_field(written.routing if option in ROUTING_OPTIONS else written.listener, option, path)
    assert len(written.routing) + len(written.listener) == 1


@pytest.mark.parametrize("option", LISTENER_OPTIONS, ids=lambda option: option.key)
def test_every_flag_of_the_server_is_a_key_of_its_table(option: Option, write: Write) -> None:
    path = write(f"[listener]\n{option.key} = {json.dumps(example(option))}")
    check_field(read_file(path).listener, option, path)


@pytest.mark.parametrize("underscores", [False, True])
@pytest.mark.parametrize("option", MODEL_OPTIONS, ids=lambda option: option.key)
def test_every_flag_of_a_model_is_a_key(option: Option, underscores: bool, write: Write) -> None:
    key = option.key.replace("-", "_") if underscores else option.key
    path = write(f"[[model]]\nmodel = 'm'\n{key} = {json.dumps(example(option))}")
    (model,) = read_file(path).models
    check_field(model.settings, option, path)
    assert len(model.settings) == 2


def test_an_empty_file_says_nothing(write: Write) -> None:
    path = write("")
    assert read_file(path) == Written(name=str(path))


def test_models_keep_their_order_and_their_place(write: Write) -> None:
    path = write("[[model]]\nmodel = 'a'\n[[model]]\nmodel = 'b'\n[listener]\nport = 1")
    models = read_file(path).models
    assert [model.place for model in models] == [f"[[model]] {n} of {path}" for n in (1, 2)]
    assert [model.settings["path"].value.name for model in models] == ["a", "b"]


def test_paths_start_at_the_file_wherever_the_server_runs(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("[[model]]\nmodel = 'sub/a.gguf'\n[[model]]\nmodel = '/models/b.gguf'")
    monkeypatch.chdir("/")
    paths = [model.settings["path"].value for model in read_file(path).models]
    assert paths == [path.parent / "sub" / "a.gguf", Path("/models/b.gguf")]
    monkeypatch.chdir(path.parent)
    assert read_file(Path("luce.toml")).models[0].settings["path"].value == Path("sub/a.gguf")


def test_the_demo_model(write: Write) -> None:
    (model,) = read_file(write("[[model]]\ndemo = true")).models
    assert values_of(model.settings) == {"path": DEMO_MODEL}
    (model,) = read_file(write("[[model]]\ndemo = false\nmodel = 'a'")).models
    assert model.settings["path"].value.name == "a"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("prefix-cache = false", False),
        ("no-prefix-cache = true", False),
        ("no_prefix_cache = false", True),
    ],
)
def test_switches_have_two_forms(text: str, value: bool, write: Write) -> None:
    (model,) = read_file(write(f"[[model]]\nmodel = 'm'\n{text}")).models
    assert model.settings["prefix_cache"].value is value


MODEL = "[[model]]\nmodel = 'm.gguf'\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prot = 1", "luce.toml: unknown key prot; write port"),
        ("zebra = 1", "luce.toml: unknown key zebra"),
        ('"a\\u0007" = 1', "luce.toml: unknown key 'a\\x07'"),
        ("primary-gpu = 'cpu:0'", "unknown key primary-gpu; write load-balancing-primary-gpu"),
        ("port = '80'", "luce.toml: port: expected a whole number, not a text"),
        ("port = 70000", "luce.toml: port: 70000 is out of range, 0 to 65535"),
        ("port = true", "luce.toml: port: expected a whole number, not true or false"),
        ("load_balancing = 1", "luce.toml: load_balancing: expected true or false, not a whole"),
        ("load-balancing-primary-gpu = 'auto:0'", "'auto:0' names no device"),
        ("max-ctx = 64", "luce.toml: max-ctx belongs in a [[model]] table"),
        ("config = 'x'", "luce.toml: unknown key config"),
        ("port = 1\n'--port' = 2", "luce.toml: --port: port is written twice"),
        ("[listener]\nport = 1.5", "[listener] of luce.toml: port: expected a whole number, not"),
        ("[listener]\nmax-ctx = 1", "[listener] of luce.toml: max-ctx belongs in a [[model]]"),
        ("[listener]\nload-balancing = true", "load-balancing belongs at the top of the file"),
        ("port = 1\n[listener]\nport = 1", "luce.toml: port stands at the top and in [listener]"),
        ("listener = 1", "luce.toml: listener: expected a table: write [listener]"),
        ("[[listener]]", "luce.toml: listener: expected a table: write [listener]"),
        ("[model]\nmodel = 'a'", "luce.toml: model: write each model as a [[model]] table"),
        ("model = 'a'", "luce.toml: model: write each model as a [[model]] table"),
        ("model = [1]", "luce.toml: model: write each model as a [[model]] table"),
        ("[[model]]", "[[model]] 1 of luce.toml (unnamed): no model, the path of a model file"),
        ("[[model]]\ndemo = false", "(unnamed): no model, the path"),
        (f"{MODEL}demo = true", "[[model]] 1 of luce.toml (m.gguf): model and demo exclude each"),
        (f"{MODEL}[[model]]\nmodel = ''", "[[model]] 2 of luce.toml (unnamed): model: the value"),
        (f"{MODEL}model_name = 'a'\nchunk = 1", "of luce.toml (a): chunk: 1 is out of range"),
        (f"{MODEL}model-name = 'auto'", "(auto): model-name: 'auto' is reserved"),
        (f"{MODEL}max_ctx = 64\nmax-ctx = 64", "(m.gguf): max-ctx: max-ctx is written twice"),
        (f"{MODEL}prefix-cache = true\nno-prefix-cache = true", "prefix-cache is written twice"),
        (f"{MODEL}port = 1", "(m.gguf): port belongs at the top of the file, not in this table"),
        (f"{MODEL}path = 'x'", "[[model]] 1 of luce.toml (m.gguf): unknown key path"),
        (f"{MODEL}target-device = 'tpu:0'", "target-device: 'tpu:0' is none of cpu, cpu:N"),
        (f"{MODEL}dtype = 'int3'", "dtype: 'int3' is none of auto, float32"),
        ("port = ", "luce.toml: not TOML: Invalid value (at "),
        ("port = 1\nport = 2", "luce.toml: not TOML: Cannot overwrite a value"),
        ("port = " + "9" * 5000, "luce.toml: not TOML: "),
        ("x = " + "[" * 100_000, "luce.toml: not readable: nested too deeply"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str, write: Write) -> None:
    assert problem in problem_of(write(text))


def test_a_missing_file(tmp_path: Path) -> None:
    assert problem_of(tmp_path / "luce.toml") == (
        "--config: cannot read luce.toml: No such file or directory"
    )


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--config: cannot read .*: Is a directory"):
        read_file(tmp_path)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "luce.toml"
    path.write_bytes(b"#" * MAX_FILE_BYTES)
    assert read_file(path) == Written(name=str(path))
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    assert "is larger than 1048576 bytes" in problem_of(path)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "luce.toml"
    os.mkfifo(path)
    assert read_file(path) == Written(name=str(path))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "luce.toml"
    path.write_bytes(b"port = 1 # \xff")
    assert problem_of(path) == "luce.toml: not UTF-8 text"


GOOD = """\
load-balancing = true
[listener]
port = 8080
[[model]]
model = "a"
model-name = "é"
max-ctx = 64
[[model]]
demo = true
""".encode()

mutations = st.lists(
    st.tuples(st.integers(0, len(GOOD) - 1), st.binary(max_size=4)), min_size=1, max_size=6
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(mutations)
def test_damaged_files_are_read_or_refused(
    tmp_path: Path, changes: list[tuple[int, bytes]]
) -> None:
    content = GOOD
    for position, piece in changes:
        content = content[:position] + piece + content[position + len(piece) :]
    path = tmp_path / "damaged.toml"
    path.write_bytes(content)
    try:
        written = read_file(path)
    except UsageError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert all("path" in model.settings for model in written.models)


def test_lists_take_one_or_several(write: Write) -> None:
    found = read_file(write("api-key = ['a', 'b']\ncors-origin = []")).listener
    assert found["api_key"].value == ("a", "b")
    assert found["cors_origin"].value == ()
    for text, problem in [
        ("api-key = ['a', 5]", "api-key: expected a text, not a whole number"),
        ("api-key = [['a']]", "api-key: expected a text, not a list"),
        ("cors-origin = ['a']", "cors-origin: 'a' is no origin"),
        ("port = [1]", "port: expected a whole number, not a list"),
    ]:
        assert problem in problem_of(write(text))
