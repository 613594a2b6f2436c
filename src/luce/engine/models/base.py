"""What a model is to the engine, and what it may ask of the loader."""

from __future__ import annotations

from typing import Protocol

import torch

from luce.engine.context import ForwardContext


class Parameters(Protocol):
    """A checkpoint's parameters by Hugging Face name, without the leading "model."."""

    def matrix(self, *parts: tuple[str, tuple[int, int]]) -> torch.Tensor:
        """Matrices stacked by rows, in the compute type on the model's device.

        Args:
            parts: name and expected [out, in] of each; all with the same `in`.

        Raises:
            ModelFileError: one is missing or has another shape.
        """

    def vector(self, *parts: tuple[str, tuple[int]]) -> torch.Tensor:
        """Vectors laid end to end; as `matrix`."""

    def table(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        """A lookup table, in the stored type where that is exact and narrower."""

    def optional_vector(self, name: str, shape: tuple[int]) -> torch.Tensor | None:
        """A float32 vector that may be missing."""


class Model(Protocol):
    """A loaded model. Holds weights and nothing of any sequence."""

    @property
    def vocab_size(self) -> int:
        """V."""

    @property
    def nbytes(self) -> int:
        """Memory of the parameters and tables."""

    def rotary(self, positions: torch.Tensor) -> torch.Tensor:
        """The rotary angles of i32 [T] positions, for the context."""

    def forward(self, input_ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """i32 [T] → hidden states [T, hidden], normalised; writes the step's KV."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, hidden] → f32 [B, V]."""
