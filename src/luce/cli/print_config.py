"""`--print-config`: every resolved value and who said it, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from luce.cli.visible import visible
from luce.config.block import ModelBlock
from luce.config.load import Loaded
from luce.config.model import DEMO_MODEL
from luce.config.option import Option
from luce.config.setting import Setting, Settings
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS, PATH_OPTION, ROUTING_OPTIONS

_BLOCK_OPTIONS = (PATH_OPTION, *MODEL_OPTIONS)


def config_text(loaded: Loaded) -> str:
    """One line a value: flag, value, source. `unset` is worked out when the model loads."""
    sections = [
        ("the launch", ROUTING_OPTIONS, loaded.routing),
        ("the server", LISTENER_OPTIONS, loaded.listener),
    ]
    sections += [
        (visible(f"{block.label}: {role}"), _BLOCK_OPTIONS, block.settings)
        for block, role in _roles(loaded)
    ]
    rows = [_row(option, settings) for _, options, settings in sections for option in options]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines: list[str] = []
    for title, options, settings in sections:
        lines += ["", title]
        for flag, value, origin in (_row(option, settings) for option in options):
            lines.append(f"  {flag:{widths[0]}}  {value:{widths[1]}}  {origin}")
    return "\n".join(lines[1:])


def config_json(loaded: Loaded) -> str:
    """The same as JSON; the keys are those of a configuration file."""
    models = [
        {
            "place": block.place,
            "role": role,
            "settings": _object(_BLOCK_OPTIONS, block.settings),
        }
        for block, role in _roles(loaded)
    ]
    document = {
        "routing": _object(ROUTING_OPTIONS, loaded.routing),
        "listener": _object(LISTENER_OPTIONS, loaded.listener),
        "models": models,
        "notes": list(loaded.notes),
    }
    return json.dumps(document, indent=2)


def _roles(loaded: Loaded) -> Iterable[tuple[ModelBlock, str]]:
    for index, block in enumerate(loaded.blocks):
        is_served = index < len(loaded.config.models)
        yield block, "primary" if index == 0 else "fallback" if is_served else "unused"


def _row(option: Option, settings: Settings) -> tuple[str, str, str]:
    setting = settings[option.field]
    value = "the demo model" if setting.value == DEMO_MODEL else option.show(setting.value)
    return option.flags[0], visible(value), visible(setting.origin)


def _object(options: Iterable[Option], settings: Settings) -> dict[str, Any]:
    return {option.key: _entry(option, settings[option.field]) for option in options}


def _entry(option: Option, setting: Setting) -> dict[str, Any]:
    value = str(setting.value) if isinstance(setting.value, Path) else setting.value
    if option.secret and value:
        value = option.show(value)
    entry = {"value": value, "source": str(setting.source)}
    return entry | ({"detail": setting.detail} if setting.detail else {})
