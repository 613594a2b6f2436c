"""What was written becomes one configuration, with notes about what has no effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.config.listener import ListenerConfig
from luce.config.load import load_config
from luce.config.model import ModelConfig
from luce.errors import UsageError

A = {"path": Path("a.gguf")}


def test_defaults_below_what_was_written() -> None:
    loaded = load_config({"port": 9000}, [A | {"chunk": 64}])
    assert loaded.config.listener == ListenerConfig(port=9000)
    assert loaded.config.models == (ModelConfig(path=Path("a.gguf"), chunk=64),)
    assert loaded.notes == ()


def test_only_the_first_model_is_served_and_the_others_are_named() -> None:
    others = [A | {"name": "b"}, A | {"name": "c"}]
    loaded = load_config({}, [A, *others])
    assert [model.name for model in loaded.config.models] == ["luce"]
    assert loaded.notes == ("only block 1 (luce) is served; unused: block 2 (b), 3 (c)",)


def test_unused_blocks_are_checked() -> None:
    with pytest.raises(UsageError, match="block 2"):
        load_config({}, [A, A | {"name": "b", "target_device": "nowhere"}])


@pytest.mark.parametrize(
    ("written", "cap"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"default_max_tokens": 9}, 9),
        ({"max_tokens": 7, "default_max_tokens": 9}, 9),
    ],
)
def test_newer_spelling_of_the_output_cap_wins(written: dict[str, int], cap: int | None) -> None:
    loaded = load_config({}, [A | written])
    assert loaded.config.models[0].output_cap == cap
    assert len(loaded.notes) == (len(written) == 2)


def test_no_model() -> None:
    with pytest.raises(UsageError, match="no model given"):
        load_config({}, [])
