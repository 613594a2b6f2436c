"""`--print-config` shows every value and who said it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from luce.cli.launch import read_launch
from luce.cli.print_config import config_json, config_text
from luce.cli.resolve import resolve
from luce.config.load import Loaded
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS, ROUTING_OPTIONS
from luce.config.toml_file import read_file


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    """Something from every source."""
    path = tmp_path / "luce.toml"
    path.write_text(
        "load-balancing = true\nport = 1\n"
        "[[model]]\nmodel = 'a'\nmodel-name = 'big'\ntarget-device = 'cpu:0'\n"
        "[[model]]\ndemo = true\nmodel-name = 'small'\ntarget-device = 'cpu:1'\n"
        "prefix-cache = false\n"
    )
    words = ["--config", str(path), "--load-balancing-primary-gpu", "cpu:1", "--host", "::1"]
    return resolve(read_launch(words), {"LUCE_MAX_CTX": "64", "LUCE_PORT": "2"})


def rows(text: str) -> list[list[str]]:
    """Cells of the indented lines."""
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    return [re.split(r" {2,}", line.strip()) for line in lines]


def titles(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith(" ")]


def test_every_value_is_printed_with_its_source(loaded: Loaded) -> None:
    text = config_text(loaded)
    file = loaded.blocks[0].settings["name"].detail
    found = rows(text)
    for row in (
        ["--load-balancing", "on", f"file {file}"],
        ["--load-balancing-primary-gpu", "cpu:1", "command line"],
        ["--host", "::1", "command line"],
        ["--port", "1", f"file {file}"],
        ["--routing-queue-limit", "32", "default"],
        ["--model", "the demo model", f"file {file}"],
        ["--model", str(Path(file).parent / "a"), f"file {file}"],
        ["--max-ctx", "64", "environment LUCE_MAX_CTX"],
        ["--threads", "unset", "default"],
        ["--prefix-cache", "off", f"file {file}"],
        ["--prefix-cache", "on", "default"],
    ):
        assert row in found
    count = len(ROUTING_OPTIONS) + len(LISTENER_OPTIONS) + 2 * (1 + len(MODEL_OPTIONS))
    assert len(found) == count


def test_blocks_stand_in_the_order_of_priority_with_their_roles(loaded: Loaded) -> None:
    file = loaded.blocks[0].settings["name"].detail
    assert titles(config_text(loaded)) == [
        "the launch",
        "the server",
        f"[[model]] 2 of {file} (small): primary",
        f"[[model]] 1 of {file} (big): fallback",
    ]


def test_unused_blocks_are_printed_too() -> None:
    unused = resolve(read_launch("a --model-name x --model b --model-name y".split()))
    assert titles(config_text(unused))[2:] == ["block 1 (x): primary", "block 2 (y): unused"]
    document = json.loads(config_json(unused))
    assert [model["role"] for model in document["models"]] == ["primary", "unused"]
    assert document["notes"] == list(unused.notes) != []


def test_json_has_the_same(loaded: Loaded) -> None:
    document = json.loads(config_json(loaded))
    file = loaded.blocks[0].settings["name"].detail
    assert document["routing"]["load-balancing"] == {
        "value": True,
        "source": "file",
        "detail": file,
    }
    assert document["listener"]["host"] == {"value": "::1", "source": "command line"}
    assert list(document["listener"]) == [option.key for option in LISTENER_OPTIONS]
    small, big = document["models"]
    assert (small["place"], small["role"]) == (f"[[model]] 2 of {file}", "primary")
    assert small["settings"]["max-ctx"]["detail"] == "LUCE_MAX_CTX"
    assert big["settings"]["model"]["value"] == str(Path(file).parent / "a")
    assert big["settings"]["threads"] == {"value": None, "source": "default"}


def test_the_keys_of_the_json_are_those_of_a_file(loaded: Loaded, tmp_path: Path) -> None:
    document = json.loads(config_json(loaded))
    routing = document["routing"].items()
    lines = [f"{k} = {json.dumps(v['value'])}" for k, v in routing if v["value"] is not None]
    lines += ["[listener]"]
    listener = document["listener"].items()
    lines += [f"{k} = {json.dumps(v['value'])}" for k, v in listener if v["value"] is not None]
    for model in document["models"]:
        settings = model["settings"].items()
        lines += ["[[model]]"]
        lines += [f"{k} = {json.dumps(v['value'])}" for k, v in settings if v["value"] is not None]
    again = tmp_path / "again.toml"
    again.write_text("\n".join(lines))
    names = [model.settings["name"].value for model in read_file(again).models]
    assert names == ["small", "big"]


def test_values_that_no_terminal_should_see_are_escaped() -> None:
    odd = resolve(read_launch(["m\x1b[31m\udcff.gguf"]))
    assert ["--model", "'m\\x1b[31m\\udcff.gguf'", "command line"] in rows(config_text(odd))
    assert json.loads(config_json(odd))["models"][0]["settings"]["model"]["value"].startswith("m")


def test_keys_are_not_printed() -> None:
    words = "--demo --api-key sk-secret --api-key sk-other --cors-origin http://a".split()
    keyed = resolve(read_launch(words))
    assert ["--api-key", "set, not shown", "command line"] in rows(config_text(keyed))
    assert ["--cors-origin", "http://a", "command line"] in rows(config_text(keyed))
    document = json.loads(config_json(keyed))
    assert document["listener"]["api-key"]["value"] == "set, not shown"
    assert document["listener"]["cors-origin"]["value"] == ["http://a"]
    assert "sk-" not in config_text(keyed) + config_json(keyed) + repr(keyed.config)
