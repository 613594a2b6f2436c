"""Reads a configuration file: TOML whose keys are the flags of the command line.

Keys of the launch and the server stand at the top or, the server's, in `[listener]`; each model
is a `[[model]]` table. Paths in it are relative to the file. No model file is touched.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luce.config.model import DEMO_MODEL
from luce.config.option import BadValue, Option, key_of
from luce.config.setting import Setting, Source
from luce.config.table import (
    DEMO_OPTION,
    LISTENER_OPTIONS,
    MODEL_OPTIONS,
    PATH_OPTION,
    ROUTING_OPTIONS,
    keys_of,
    suggest,
)
from luce.config.written import Written, WrittenModel
from luce.errors import UsageError
from luce.option_file import read_option_file, reason_of

LISTENER_TABLE = "listener"
MODEL_TABLE = "model"


def read_file(path: Path) -> Written:
    """Read and check a configuration file.

    Raises:
        UsageError: the file cannot be read, is no TOML, or has an unknown key or a wrong value;
            names the file, the table and the key.
    """
    content = _parse(path)
    models = content.pop(MODEL_TABLE, [])
    listener = content.pop(LISTENER_TABLE, {})
    if not isinstance(listener, dict):
        raise UsageError(f"{path}: {LISTENER_TABLE}: expected a table: write [{LISTENER_TABLE}]")
    top = _Table(path, str(path), ROUTING_OPTIONS + LISTENER_OPTIONS).read(content)
    inner = _Table(path, f"[{LISTENER_TABLE}] of {path}", LISTENER_OPTIONS).read(listener)
    for option in LISTENER_OPTIONS:
        if option.field in top and option.field in inner:
            raise UsageError(f"{path}: {option.key} stands at the top and in [{LISTENER_TABLE}]")
    routing = {option.field for option in ROUTING_OPTIONS}
    return Written(
        name=str(path),
        routing={field: setting for field, setting in top.items() if field in routing},
        listener=inner | {field: top[field] for field in top if field not in routing},
        models=_read_models(path, models),
    )


def _parse(path: Path) -> dict[str, Any]:
    try:
        content = read_option_file(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--config: cannot read {path}: {reason_of(error)}") from error
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text") from error
    except ValueError as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: not readable: nested too deeply") from error


def _read_models(path: Path, models: object) -> tuple[WrittenModel, ...]:
    if not isinstance(models, list) or not all(isinstance(model, dict) for model in models):
        raise UsageError(f"{path}: {MODEL_TABLE}: write each model as a [[{MODEL_TABLE}]] table")
    return tuple(_read_model(path, number, model) for number, model in enumerate(models, start=1))


def _read_model(path: Path, number: int, model: Mapping[str, object]) -> WrittenModel:
    place = f"[[{MODEL_TABLE}]] {number} of {path}"
    where = f"{place} ({_name_in(model)})"
    settings = _Table(path, where, (PATH_OPTION, DEMO_OPTION, *MODEL_OPTIONS)).read(model)
    demo = settings.pop(DEMO_OPTION.field, None)
    if demo is not None and demo.value:
        if PATH_OPTION.field in settings:
            raise UsageError(f"{where}: {PATH_OPTION.key} and {DEMO_OPTION.key} exclude each other")
        settings[PATH_OPTION.field] = Setting(DEMO_MODEL, demo.source, demo.detail)
    if PATH_OPTION.field not in settings:
        raise UsageError(f"{where}: no {PATH_OPTION.key}, the path of a model file or folder")
    return WrittenModel(place=place, settings=settings)


def _name_in(model: Mapping[str, object]) -> str:
    """What a message calls a model whose table is not checked yet."""
    candidates = [model.get(key) for key in ("model-name", "model_name", PATH_OPTION.key)]
    texts = [text for text in candidates if isinstance(text, str) and text and text.isprintable()]
    return texts[0] if texts else "unnamed"


@dataclass(frozen=True, slots=True)
class _Table:
    """Reads one table.

    Attributes:
        path: the file.
        where: starts each message.
        options: the options that may stand in it.
    """

    path: Path
    where: str
    options: Sequence[Option]

    def read(self, table: Mapping[str, object]) -> dict[str, Setting]:
        """Field → setting of every key of the table."""
        known = keys_of(self.options)
        settings: dict[str, Setting] = {}
        for key, value in table.items():
            if key_of(key) not in known:
                raise UsageError(f"{self.where}: {_explain_unknown(key, list(known))}")
            option, negated = known[key_of(key)]
            if option.field in settings:
                raise UsageError(f"{self.where}: {key}: {option.key} is written twice")
            settings[option.field] = self._setting(key, option, value, negated)
        return settings

    def _setting(self, key: str, option: Option, value: object, negated: bool) -> Setting:
        try:
            accepted = option.accept(value)
        except BadValue as problem:
            raise UsageError(f"{self.where}: {key}: {problem}") from problem
        if option.kind is Path:
            accepted = self.path.parent / accepted
        elif negated:
            accepted = not accepted
        return Setting(accepted, Source.FILE, str(self.path))


def _explain_unknown(key: str, known: Sequence[str]) -> str:
    """Why `key` is not accepted, where only `known` keys are."""
    plain = key_of(key)
    shown = key if key.isprintable() else ascii(key)
    if plain in keys_of(MODEL_OPTIONS):
        return f"{shown} belongs in a [[{MODEL_TABLE}]] table"
    if plain in keys_of(LISTENER_OPTIONS + ROUTING_OPTIONS):
        return f"{shown} belongs at the top of the file, not in this table"
    close = suggest(plain, [*known, MODEL_TABLE])
    return f"unknown key {shown}" + (f"; write {close}" if close else "")
