"""What one source, the command line or a file, says: only what is written there, checked one by
one but not yet against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from luce.config.setting import Setting, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenModel:
    """One model as it is written.

    Attributes:
        place: how messages name the place, e.g. `block 2`.
        settings: the written fields of `ModelConfig`; always holds `path`.
    """

    place: str
    settings: Settings


def _nothing() -> Mapping[str, Setting]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """All of one source.

    Attributes:
        name: how messages name the source.
        models: the model blocks in the order written.
    """

    name: str
    routing: Settings = field(default_factory=_nothing)
    listener: Settings = field(default_factory=_nothing)
    models: tuple[WrittenModel, ...] = ()
