"""A resolved value and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from luce.config.option import Option


class Source(StrEnum):
    """Who says a value, weakest first."""

    DEFAULT = "default"
    PROFILE = "profile"
    ENVIRONMENT = "environment"
    FILE = "file"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value.

    Attributes:
        value: of the option's kind.
        source: who says so.
        detail: which profile, variable or file.
    """

    value: Any
    source: Source
    detail: str = ""

    @property
    def is_written(self) -> bool:
        """Whether somebody wrote it, or chose the profile, for this very place."""
        return self.source in (Source.PROFILE, Source.FILE, Source.COMMAND_LINE)

    @property
    def origin(self) -> str:
        """Source and detail as people read them."""
        return f"{self.source} {self.detail}".rstrip()


Settings = Mapping[str, Setting]
"""Field name → setting."""


def defaults_of(options: Iterable[Option]) -> dict[str, Setting]:
    """What holds when nobody says anything."""
    return {option.field: Setting(option.default, Source.DEFAULT) for option in options}


def settings_of(values: Mapping[str, Any], source: Source, detail: str = "") -> dict[str, Setting]:
    """The settings one source gives."""
    return {field: Setting(value, source, detail) for field, value in values.items()}


def values_of(settings: Settings) -> dict[str, Any]:
    """The bare values, as a configuration dataclass takes them."""
    return {field: setting.value for field, setting in settings.items()}
