"""Turns a `luce_server` command line into a checked configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from luce.cli.blocks import Block, CommandLine, split_blocks
from luce.cli.demo import find_demo_model
from luce.cli.launch import Launch
from luce.cli.options import parse_words, repeated_flags
from luce.config.listener import ServerConfig
from luce.config.load import Loaded, load_config
from luce.config.model import DEMO_MODEL
from luce.config.option import Option
from luce.config.setting import Source, settings_of
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS
from luce.config.toml_file import read_file
from luce.config.written import Written, WrittenModel

_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def resolve(launch: Launch, environment: Mapping[str, str] = _NO_VARIABLES) -> Loaded:
    """Parse and check everything, served or not, before any model file is touched.

    Raises:
        UsageError: anything wrong; names the block and its model.
    """
    line = split_blocks(launch.words)
    command_line = _read_line(launch, line)
    file = None if launch.config_file is None else read_file(launch.config_file)
    loaded = load_config(command_line, file, environment)
    return replace(loaded, notes=(*_repetition_notes(line), *loaded.notes))


def locate_demo(config: ServerConfig) -> ServerConfig:
    """The configuration with the demo model's real path.

    Raises:
        UsageError: it is to be served and not installed.
    """
    models = tuple(
        replace(model, path=find_demo_model()) if model.path == DEMO_MODEL else model
        for model in config.models
    )
    return replace(config, models=models)


def _read_line(launch: Launch, line: CommandLine) -> Written:
    listener = parse_words(line.prelude, LISTENER_OPTIONS, "before the first model")
    models = []
    for block in line.blocks:
        values = parse_words(block.arguments, _allowed(block), block.label)
        values["path"] = DEMO_MODEL if block.path is None else Path(block.path)
        listener = _joined(listener, _take_listener_values(values))
        settings = settings_of(values, Source.COMMAND_LINE)
        models.append(WrittenModel(place=block.place, settings=settings))
    return Written(
        name="the command line",
        routing=settings_of(launch.routing, Source.COMMAND_LINE),
        listener=settings_of(listener, Source.COMMAND_LINE),
        models=tuple(models),
    )


def _allowed(block: Block) -> tuple[Option, ...]:
    return MODEL_OPTIONS + LISTENER_OPTIONS if block.number == 1 else MODEL_OPTIONS


def _take_listener_values(values: dict[str, Any]) -> dict[str, Any]:
    """Move the server's values out of those of a block."""
    fields = [option.field for option in LISTENER_OPTIONS if option.field in values]
    return {field: values.pop(field) for field in fields}


def _joined(prelude: dict[str, Any], block: dict[str, Any]) -> dict[str, Any]:
    """The values of both places: the later one wins, lists are put together."""
    lists = {option.field for option in LISTENER_OPTIONS if option.is_list}
    both = {field: prelude[field] + block[field] for field in lists & prelude.keys() & block.keys()}
    return prelude | block | both


def _repetition_notes(line: CommandLine) -> list[str]:
    return [
        f"{block.label}: {flag} is written more than once; the last one counts"
        for block in line.blocks
        for flag in repeated_flags(block.arguments, _allowed(block))
    ]
