"""Command-line options generated from the metadata of the configuration's fields.

The dataclasses of `luce.config` are the one source: parsers, `--help` and `docs/flags.md` are
made from them, so a flag cannot be parsed and undocumented, or documented and unknown.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, NoReturn, get_args, get_type_hints

from luce.config.listener import ListenerConfig
from luce.config.model import ModelConfig
from luce.errors import UsageError

MAX_INTEGER = 2**31 - 1
"""Largest integer any option takes: far above every sensible count, far below what overflows
a message field or a tensor index."""

_MAX_DIGITS = 20
_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as read from a configuration field.

    Attributes:
        field: the field's name, which is also the key of its parsed value.
        kind: the type of its value: str, int or Path.
        default: the field's default; None means "from the file or the machine".
    """

    field: str
    flags: tuple[str, ...]
    kind: type
    default: Any
    help: str
    unit: str
    metavar: str
    minimum: int | None
    maximum: int | None
    choices: tuple[str, ...]

    @property
    def value_word(self) -> str:
        """What stands for the value in help texts: `N`, `PATH`, `auto|float32`."""
        return "|".join(self.choices) or self.metavar

    @property
    def lowest(self) -> int:
        """Smallest integer it takes."""
        return self.minimum or 0

    @property
    def highest(self) -> int:
        """Largest integer it takes."""
        return MAX_INTEGER if self.maximum is None else self.maximum

    def parse(self, text: str) -> Any:
        """Turn a command-line word into the field's value.

        Raises:
            argparse.ArgumentTypeError: not of the kind, out of range, or no choice.
        """
        if self.choices and text not in self.choices:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(self.choices)}")
        if self.kind is int:
            return self._parse_integer(text)
        if not text:
            raise argparse.ArgumentTypeError("the value is empty")
        return self.kind(text)

    def _parse_integer(self, text: str) -> int:
        if not _INTEGER.fullmatch(text):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
        if len(text) > _MAX_DIGITS or not self.lowest <= int(text) <= self.highest:
            raise argparse.ArgumentTypeError(
                f"{text[:_MAX_DIGITS]} is out of range, {self.lowest} to {self.highest}"
            )
        return int(text)


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
        found.append(Option(field=entry.name, kind=kind, default=default, **entry.metadata))
    return tuple(found)


LISTENER_OPTIONS = options_of(ListenerConfig)
MODEL_OPTIONS = options_of(ModelConfig)


def parse_words(words: Sequence[str], options: Sequence[Option], where: str) -> dict[str, Any]:
    """Parse the words of one block.

    Args:
        words: the block's words without its model.
        options: the options allowed in this block.
        where: starts each message, e.g. `block 2 (small)`.

    Returns:
        field name → value, of the options that were written. The last of a repeated option
        counts.

    Raises:
        UsageError: an unknown or misplaced option, a bad value, or a stray word.
    """
    parser = _Parser(where)
    for option in options:
        parser.add_option(option)
    values, rest = parser.parse_known_args(list(words))
    if "--" in words:
        rest = ["--"]
    if rest:
        raise UsageError(f"{where}: {_explain_stray(rest[0], options)}")
    return dict(vars(values))


def repeated_flags(words: Sequence[str], options: Sequence[Option]) -> list[str]:
    """First spellings of the options written more than once in one block, in option order."""
    written = [word.partition("=")[0] for word in words]
    return [
        option.flags[0]
        for option in options
        if sum(written.count(flag) for flag in option.flags) > 1
    ]


class _Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of printing a page of usage and exiting."""

    def __init__(self, where: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
        self._where = where

    def add_option(self, option: Option) -> None:
        parse: Callable[[str], Any] = option.parse
        self.add_argument(*option.flags, dest=option.field, type=parse, metavar=option.metavar)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self._where}: {_plain(message)}")


def _plain(message: str) -> str:
    """`argument --port: expected one argument` → `--port needs a value`."""
    message = message.removeprefix("argument ")
    return re.sub(r": expected one argument$", " needs a value", message)


def _explain_stray(word: str, allowed: Sequence[Option]) -> str:
    """Why `word` is not accepted among the options `allowed`."""
    if not word.startswith("-") or word == "-":
        return f"unexpected word {word!r}: a model's path comes first or after --model"
    flag = word.partition("=")[0]
    if flag in _flags(LISTENER_OPTIONS):
        return f"{flag} belongs in the first model block"
    if flag in _flags(MODEL_OPTIONS):
        return f"{flag} belongs to a model: write it after that model's path"
    close = difflib.get_close_matches(flag, _flags(allowed), n=1, cutoff=0.75)
    hint = f"; did you mean {close[0]}?" if close else "; --help lists all options"
    return f"unknown option {flag}{hint}"


def _flags(options: Sequence[Option]) -> list[str]:
    return [flag for option in options for flag in option.flags]
