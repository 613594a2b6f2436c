"""One option: what a configuration field says about its flag, its key, its values and its help.

The dataclasses beside this module are the one source. Command-line parsers, configuration
files, `--help`, `--print-config` and `docs/flags.md` are all made from their fields, so an
option cannot be known to one of them and unknown to another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from luce.units import cut

MAX_INTEGER = 2**31 - 1
"""Largest integer any option takes: far above every sensible count, far below what overflows
a message field or a tensor index."""

_MAX_DIGITS = 20
_INTEGER = re.compile(r"[+-]?[0-9]+")
_WORD_OF = {str: "a text", Path: "a text", int: "a whole number", bool: "true or false"}


class BadValue(ValueError):
    """A value its option does not take; says why, without naming the option or the place."""


def option(
    default: Any,
    *flags: str,
    help: str,  # noqa: A002 - argparse's word
    unit: str = "",
    metavar: str = "",
    minimum: int | None = None,
    maximum: int | None = None,
    choices: tuple[str, ...] = (),
    variable: str = "",
    check: Callable[[str], object] | None = None,
    secret: bool = False,
) -> Any:
    """A dataclass field that is also an option; see `Option` for the arguments."""
    return field(
        default=default,
        repr=not secret,
        metadata={
            "flags": flags,
            "help": help,
            "unit": unit,
            "metavar": metavar,
            "minimum": minimum,
            "maximum": maximum,
            "choices": choices,
            "variable": variable,
            "check": check,
            "secret": secret,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, as read from a configuration field.

    Attributes:
        field: the field's name, which is also the key of its value in our mappings.
        flags: how it is written on the command line.
        kind: the type of its value: str, int, bool or Path. A bool takes no value on the
            command line: `--x` is true, `--no-x` is false.
        is_list: it may be written several times; its value is the tuple of all of them.
        default: the field's default; None means "from the model's file or the machine".
        variable: the environment variable that stands in for the flag; "" if there is none.
        check: raises `BadValue` for texts that are of no use.
        secret: its value is never shown.
        bare: value when the flag is written without one, which then must follow as `--x=VALUE`.
    """

    field: str
    flags: tuple[str, ...]
    kind: type
    is_list: bool = False
    default: Any = None
    help: str
    unit: str = ""
    metavar: str = ""
    minimum: int | None = None
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    variable: str = ""
    check: Callable[[str], object] | None = None
    secret: bool = False
    bare: str | None = None

    @property
    def is_switch(self) -> bool:
        """Whether it is written without a value."""
        return self.kind is bool

    @property
    def negations(self) -> tuple[str, ...]:
        """The flags that switch it off."""
        return tuple(f"--no-{flag[2:]}" for flag in self.flags if self.is_switch)

    @property
    def spellings(self) -> tuple[str, ...]:
        """All its flags."""
        return self.flags + self.negations

    @property
    def key(self) -> str:
        """Its key in a configuration file: the flag without dashes in front."""
        return key_of(self.flags[0])

    @property
    def value_word(self) -> str:
        """What stands for the value in help texts: `N`, `PATH`, `auto|float32`."""
        return "|".join(self.choices) or self.metavar

    @property
    def synopsis(self) -> str:
        """How help texts write it."""
        if self.bare is not None:
            return f"{self.flags[0]}[={self.value_word}]"
        return f"{', '.join(self.spellings)} {self.value_word}".rstrip()

    @property
    def default_text(self) -> str:
        """The default as people read it; empty where there is nothing to tell."""
        return "" if self.default is None or self.default == () else self.show(self.default)

    @property
    def lowest(self) -> int:
        """Smallest integer it takes."""
        return self.minimum or 0

    @property
    def highest(self) -> int:
        """Largest integer it takes."""
        return MAX_INTEGER if self.maximum is None else self.maximum

    def parse(self, text: str) -> Any:
        """Turn a word of the command line or a variable's text into the field's value, or, of
        an option that is a list, into one item of it.

        Raises:
            BadValue: not of the kind, out of range, or no choice.
        """
        if self.kind is int:
            return self._parse_integer(text)
        if self.choices and text not in self.choices:
            raise BadValue(f"{text!r} is none of {', '.join(self.choices)}")
        if not text:
            raise BadValue("the value is empty")
        if "\x00" in text:
            raise BadValue("the value has a NUL character in it")
        if self.check is not None:
            self.check(text)
        return self.kind(text)

    def accept(self, value: object) -> Any:
        """Turn a typed value of a configuration file into the field's value.

        Raises:
            BadValue: of another type, or as for `parse`.
        """
        if self.is_list and isinstance(value, list | tuple):
            return tuple(self._accept_one(item) for item in value)
        one = self._accept_one(value)
        return (one,) if self.is_list else one

    def show(self, value: Any) -> str:
        """A value as people read it."""
        if value is None or value == ():
            return "unset"
        if self.secret:
            return "set, not shown"
        if isinstance(value, bool):
            return "on" if value else "off"
        text = ", ".join(value) if self.is_list else str(value)
        return text if text.isprintable() else ascii(text)

    def _accept_one(self, value: object) -> Any:
        expected = str if self.kind is Path else self.kind
        if type(value) is not expected:
            raise BadValue(f"expected {_WORD_OF[self.kind]}, not {_toml_word(value)}")
        return value if self.is_switch else self.parse(str(value))

    def _parse_integer(self, text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise BadValue(f"{text!r} is not a whole number")
        if len(text) > _MAX_DIGITS or not self.lowest <= int(text) <= self.highest:
            raise BadValue(
                f"{cut(text, _MAX_DIGITS)} is out of range, {self.lowest} to {self.highest}"
            )
        return int(text)


def key_of(flag: str) -> str:
    """`--max-ctx` → `max-ctx`, which is also how `max_ctx` is read."""
    return flag.lstrip("-").replace("_", "-")


@cache
def options_of(config: type) -> tuple[Option, ...]:
    """The options of a configuration dataclass, in the order of its fields."""
    hints = get_type_hints(config)
    found = []
    for entry in fields(config):
        if "flags" not in entry.metadata:
            continue
        kinds = [kind for kind in get_args(hints[entry.name]) if kind is not type(None)]
        kind = kinds[0] if kinds else hints[entry.name]
        default = None if entry.default is MISSING else entry.default
        found.append(
            Option(
                field=entry.name,
                kind=kind,
                is_list=get_origin(hints[entry.name]) is tuple,
                default=default,
                **entry.metadata,
            )
        )
    return tuple(found)


def _toml_word(value: object) -> str:
    """What people call a value of this type in a TOML file."""
    words = {bool: "true or false", int: "a whole number", float: "a number with a point"}
    words |= {str: "a text", list: "a list", dict: "a table"}
    return words.get(type(value), "a date or time")
