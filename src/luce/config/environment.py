"""Settings from environment variables, which stand in for flags in containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from luce.config.option import BadValue, Option
from luce.config.setting import Setting, Source
from luce.errors import UsageError


def read_environment(
    options: Iterable[Option], environment: Mapping[str, str]
) -> dict[str, Setting]:
    """What the variables of `options` say; an empty variable says nothing.

    Raises:
        UsageError: a value its option does not take; names the variable.
    """
    found = {}
    for option in options:
        text = environment.get(option.variable, "") if option.variable else ""
        if text:
            found[option.field] = Setting(_parse(option, text), Source.ENVIRONMENT, option.variable)
    return found


def _parse(option: Option, text: str) -> object:
    try:
        return option.parse(text)
    except BadValue as problem:
        raise UsageError(f"environment variable {option.variable}: {problem}") from problem
