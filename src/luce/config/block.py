"""One model block after all sources are put together."""

from __future__ import annotations

from dataclasses import dataclass

from luce.config.model import ModelConfig
from luce.config.setting import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBlock:
    """A model, what is set for it, and how to name the place where it is written.

    Attributes:
        place: `block 2`, or `[[model]] 2 of luce.toml`.
        settings: every field of `config` with its source.
    """

    place: str
    config: ModelConfig
    settings: Settings

    @property
    def label(self) -> str:
        """How messages name the block: by place and model."""
        return f"{self.place} ({self.config.name})"
