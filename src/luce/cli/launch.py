"""Takes the options of the whole launch out of a command line; they may stand anywhere in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luce.config.option import BadValue, Option
from luce.config.table import ROUTING_OPTIONS
from luce.errors import UsageError

CONFIG_OPTION = Option(
    field="config",
    flags=("--config",),
    kind=Path,
    metavar="FILE",
    help="Configuration file in TOML; its keys are these flags. What the command line says wins; "
    "if it names models, they replace those of the file.",
)
PRINT_OPTION = Option(
    field="print_config",
    flags=("--print-config",),
    kind=str,
    choices=("text", "json"),
    bare="text",
    help="Print every value, and who said it, and end; no model file is touched.",
)
LAUNCH_OPTIONS = (*ROUTING_OPTIONS, CONFIG_OPTION, PRINT_OPTION)
"""Everything that may stand anywhere on the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command line without its whole-launch options, and these.

    Attributes:
        routing: the written fields of `RoutingConfig`.
        config_file: file of `--config`.
        print_config: form to print the configuration in instead of serving; None = serve.
        words: all other words, in order.
    """

    routing: dict[str, Any]
    config_file: Path | None
    print_config: str | None
    words: tuple[str, ...]


def read_launch(argv: Sequence[str]) -> Launch:
    """Take the whole-launch options out of `argv`, wherever they stand.

    Raises:
        UsageError: a missing or bad value, or an option with a value given twice.
    """
    by_flag = {flag: option for option in LAUNCH_OPTIONS for flag in option.spellings}
    values: dict[str, Any] = {}
    rest = []
    words = deque(argv)
    while words:
        word = words.popleft()
        flag, separator, text = word.partition("=")
        option = by_flag.get(flag)
        if option is None:
            rest.append(word)
            continue
        if option.field in values and not (option.is_switch or option.is_list):
            raise UsageError(f"{flag} is given more than once")
        value = _value(option, flag, text if separator else None, words)
        values[option.field] = (*values.get(option.field, ()), value) if option.is_list else value
    return Launch(
        config_file=values.pop(CONFIG_OPTION.field, None),
        print_config=values.pop(PRINT_OPTION.field, None),
        routing=values,
        words=tuple(rest),
    )


def _value(option: Option, flag: str, text: str | None, following: deque[str]) -> Any:
    """The option's value, taken from the following words where it stands there."""
    if option.is_switch:
        if text is not None:
            raise UsageError(f"{flag} takes no value")
        return flag in option.flags
    if text is None:
        text = option.bare if option.bare is not None else _next_value(flag, following)
    try:
        return option.parse(text)
    except BadValue as problem:
        raise UsageError(f"{flag}: {problem}") from problem


def _next_value(flag: str, following: deque[str]) -> str:
    if not following or _is_flag(following[0]):
        raise UsageError(f"{flag} needs a value")
    return following.popleft()


def _is_flag(word: str) -> bool:
    """A negative number is none: it is a value, and out of range."""
    return word.startswith("-") and not word[1:2].isdigit()
