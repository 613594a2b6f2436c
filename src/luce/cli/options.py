"""Parses the words of one block by the option table of `luce.config`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from luce.cli.launch import LAUNCH_OPTIONS
from luce.config.option import BadValue, Option
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS, suggest
from luce.errors import UsageError


def parse_words(words: Sequence[str], options: Sequence[Option], where: str) -> dict[str, Any]:
    """Parse the words of one block.

    Args:
        words: the block's words without its model.
        options: the options allowed in this block.
        where: starts each message, e.g. `block 2 (small)`.

    Returns:
        field name → value, of the options that were written. The last of a repeated option
        counts, if it is no list.

    Raises:
        UsageError: an unknown or misplaced option, a bad value, or a stray word.
    """
    parser = _Parser(where)
    for option in options:
        add_option(parser, option)
    values, rest = parser.parse_known_args(list(words))
    if "--" in words:
        rest = ["--"]
    if rest:
        raise UsageError(f"{where}: {_explain_stray(rest[0], options)}")
    return {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in vars(values).items()
    }


def repeated_flags(words: Sequence[str], options: Sequence[Option]) -> list[str]:
    """First spellings of the options that are no lists and written more than once in one block."""
    written = [word.partition("=")[0] for word in words]
    return [
        option.flags[0]
        for option in options
        if not option.is_list and sum(written.count(flag) for flag in option.spellings) > 1
    ]


def add_option(parser: argparse.ArgumentParser, option: Option, **extra: Any) -> None:
    """Let `parser` take `option`; `extra` goes to `add_argument`."""
    if option.is_switch:
        for flags, value in ((option.flags, True), (option.negations, False)):
            parser.add_argument(*flags, dest=option.field, action="store_const", const=value)
        return
    if option.is_list:
        extra["action"] = "append"
    parser.add_argument(
        *option.flags,
        dest=option.field,
        type=_argument_type(option),
        metavar=option.value_word,
        **extra,
    )


def describe_unknown(word: str, known: Iterable[str]) -> str:
    """What to say of an option that is none of `known`, which one of them may have been meant."""
    flag = word.partition("=")[0]
    meant = suggest(flag.lstrip("-"), [each.lstrip("-") for each in known])
    hint = f"; did you mean --{meant}?" if meant else "; --help lists all options"
    return f"unknown option {flag}{hint}"


def flags_of(options: Sequence[Option]) -> list[str]:
    """All spellings of the options."""
    return [flag for option in options for flag in option.spellings]


def _argument_type(option: Option) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return option.parse(text)
        except BadValue as problem:
            raise argparse.ArgumentTypeError(str(problem)) from problem

    return parse


class _Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of printing a page of usage and exiting."""

    def __init__(self, where: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
        self._where = where

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self._where}: {_plain(message)}")


def _plain(message: str) -> str:
    """`argument --port: expected one argument` → `--port needs a value`."""
    message = message.removeprefix("argument ")
    message = re.sub(r": ignored explicit argument .*$", " takes no value", message)
    return re.sub(r": expected one argument$", " needs a value", message)


def _explain_stray(word: str, allowed: Sequence[Option]) -> str:
    """Why `word` is not accepted among the options `allowed`."""
    if not word.startswith("-") or word == "-":
        return f"unexpected word {word!r}: a model's path comes first or after --model"
    flag = word.partition("=")[0]
    if flag in flags_of(LISTENER_OPTIONS):
        return f"{flag} belongs in the first model block"
    if flag in flags_of(MODEL_OPTIONS):
        return f"{flag} belongs to a model: write it after that model's path"
    return describe_unknown(flag, flags_of([*LAUNCH_OPTIONS, *allowed]))
