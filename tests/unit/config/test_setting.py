"""Values remember who said them."""

from __future__ import annotations

import pytest

from luce.config.setting import Setting, Source, defaults_of, settings_of, values_of
from luce.config.table import LISTENER_OPTIONS


@pytest.mark.parametrize(
    ("source", "detail", "is_written", "origin"),
    [
        (Source.DEFAULT, "", False, "default"),
        (Source.ENVIRONMENT, "LUCE_PORT", False, "environment LUCE_PORT"),
        (Source.FILE, "luce.toml", True, "file luce.toml"),
        (Source.COMMAND_LINE, "", True, "command line"),
    ],
)
def test_sources(source: Source, detail: str, is_written: bool, origin: str) -> None:
    setting = Setting(1, source, detail)
    assert (setting.is_written, setting.origin) == (is_written, origin)


def test_defaults_are_those_of_the_options() -> None:
    defaults = defaults_of(LISTENER_OPTIONS)
    assert defaults["port"] == Setting(8080, Source.DEFAULT)
    assert len(defaults) == len(LISTENER_OPTIONS)


def test_values_go_in_and_come_out() -> None:
    values = {"port": 1, "host": "a"}
    settings = settings_of(values, Source.FILE, "f")
    assert settings["port"] == Setting(1, Source.FILE, "f")
    assert values_of(settings) == values
