"""The option table: all options by scope, and what to tell whoever writes one that is not in it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from luce.config.listener import ListenerConfig
from luce.config.model import ModelConfig
from luce.config.option import Option, options_of
from luce.config.routing import RoutingConfig

ROUTING_OPTIONS = options_of(RoutingConfig)
"""Options of the whole launch; they may stand anywhere."""
LISTENER_OPTIONS = options_of(ListenerConfig)
"""Options of the server; they belong to the first block."""
MODEL_OPTIONS = options_of(ModelConfig)
"""Options of one model."""
PATH_OPTION = Option(
    field="path", flags=("--model",), kind=Path, help="The model's file or folder."
)
DEMO_OPTION = Option(
    field="demo", flags=("--demo",), kind=bool, help="Whether it is the demo model."
)
"""Written instead of `PATH_OPTION`; both open a block on the command line."""

_INSTEAD = {
    "primary-gpu": "load-balancing-primary-gpu",
    "next-model": "model",
    "load-balancing-next-model": "model",
}
"""Keys that were options once → the key to write instead."""


def keys_of(options: Iterable[Option]) -> dict[str, tuple[Option, bool]]:
    """Every key of the options → the option, and whether the key negates it."""
    found = {}
    for option in options:
        for flag in option.flags:
            found[flag.lstrip("-")] = (option, False)
        for flag in option.negations:
            found[flag.lstrip("-")] = (option, True)
    return found


def suggest(key: str, known: Iterable[str]) -> str | None:
    """The key that `key` was probably meant to be."""
    if key in _INSTEAD:
        return _INSTEAD[key]
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.75)
    return close[0] if close else None
