"""Variables stand in for flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luce.config.environment import read_environment
from luce.config.setting import Setting, Source
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS
from luce.errors import UsageError

ALL = LISTENER_OPTIONS + MODEL_OPTIONS
VARIABLES: dict[str, tuple[str, str, Any]] = {
    "LUCE_HOST": ("0.0.0.0", "host", "0.0.0.0"),
    "LUCE_PORT": ("9000", "port", 9000),
    "LUCE_MODEL_NAME": ("big", "name", "big"),
    "LUCE_MAX_CTX": ("4096", "max_ctx", 4096),
    "LUCE_DEFAULT_MAX_TOKENS": ("100", "default_max_tokens", 100),
    "LUCE_MODEL_CARDS_DIR": ("cards", "model_cards", Path("cards")),
    "LUCE_TARGET_DEVICE": ("cuda:1", "target_device", "cuda:1"),
    "LUCE_PROFILE": ("small-cpu", "profile", "small-cpu"),
}
"""Variable → (its text, the field, the value it must become)."""


def test_every_variable_has_an_example_here() -> None:
    assert {option.variable for option in ALL} - {""} == set(VARIABLES)


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_variable_becomes_its_field(variable: str) -> None:
    text, field, value = VARIABLES[variable]
    expected = {field: Setting(value, Source.ENVIRONMENT, variable)}
    assert read_environment(ALL, {variable: text}) == expected


def test_empty_and_foreign_variables_say_nothing() -> None:
    environment = {"LUCE_PORT": "", "LUCE_SOMETHING": "1", "PORT": "1", "": "1"}
    assert read_environment(ALL, environment) == {}


def test_only_the_asked_options_are_read() -> None:
    environment = {"LUCE_PORT": "1", "LUCE_MAX_CTX": "x"}
    assert list(read_environment(LISTENER_OPTIONS, environment)) == ["port"]


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("LUCE_PORT", "http", "'http' is not a whole number"),
        ("LUCE_PORT", "70000", "70000 is out of range, 0 to 65535"),
        ("LUCE_HOST", "a b", "'a b' is no address"),
        ("LUCE_TARGET_DEVICE", "auto:0", "'auto:0' names no device"),
        ("LUCE_MODEL_NAME", "auto", "'auto' is reserved"),
    ],
)
def test_bad_values_name_the_variable(variable: str, text: str, problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_environment(ALL, {variable: text})
    assert str(raised.value).startswith(f"environment variable {variable}: {problem}")
