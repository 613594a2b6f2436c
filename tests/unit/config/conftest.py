"""Model blocks for the tests beside this file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from luce.config.block import ModelBlock
from luce.config.model import ModelConfig
from luce.config.setting import Source, defaults_of, settings_of
from luce.config.table import MODEL_OPTIONS

MakeBlocks = Callable[..., list[ModelBlock]]


@pytest.fixture
def make_blocks() -> MakeBlocks:
    """Blocks as if written on a command line, each from its `ModelConfig` fields."""

    def make(*models: dict[str, Any]) -> list[ModelBlock]:
        return [
            ModelBlock(
                place=f"block {number}",
                config=ModelConfig(path=Path("m.gguf"), **values),
                settings=defaults_of(MODEL_OPTIONS) | settings_of(values, Source.COMMAND_LINE),
            )
            for number, values in enumerate(models, start=1)
        ]

    return make
