"""Puts together what was written into one `ServerConfig`.

Order of precedence, lowest first: the defaults on the fields, then the command line. Values
taken from model files or the machine are not filled in here: they stay None and are resolved
by whoever opens the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.config.check import block_label, check
from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked configuration and what its author should be told about it.

    Attributes:
        config: what is served; its models are the ones that load.
        notes: sentences about settings without effect; not errors.
    """

    config: ServerConfig
    notes: tuple[str, ...]


def load_config(listener: Mapping[str, Any], models: Sequence[Mapping[str, Any]]) -> Loaded:
    """Merge, check, and keep what is served: the first model.

    Args:
        listener: field name → value, as written for `ListenerConfig`.
        models: the same for each `ModelConfig`, in order; each has at least `path`.

    Raises:
        UsageError: a value or a combination is wrong, in any block, served or not.
    """
    written = ServerConfig(
        listener=ListenerConfig(**listener),
        models=tuple(ModelConfig(**values) for values in models),
    )
    check(written)
    served = ServerConfig(listener=written.listener, models=written.models[:1])
    return Loaded(served, tuple(_notes(written)))


def _notes(written: ServerConfig) -> list[str]:
    notes = []
    for number, model in enumerate(written.models, start=1):
        if model.max_tokens is not None and model.default_max_tokens is not None:
            notes.append(
                f"{block_label(number, model)}: --max-tokens has no effect beside "
                "--default-max-tokens"
            )
    unused = [f"{number} ({model.name})" for number, model in enumerate(written.models, start=1)]
    if len(unused) > 1:
        notes.append(f"only block {unused[0]} is served; unused: block {', '.join(unused[1:])}")
    return notes
