"""What a model is to the engine, and what it may ask of the loader."""

from __future__ import annotations

from typing import Protocol

import torch

from luce.engine.context import ForwardContext
from luce.engine.native.tiles import StoredMatrix
from luce.engine.quant_planes import QuantPlanes


class Parameters(Protocol):
    """A checkpoint's parameters by Hugging Face name, without the leading "model.".

    What is returned may be filled in the background, until `finish`.
    """

    def matrix(self, *parts: tuple[str, tuple[int, int]]) -> torch.Tensor:
        """Matrices stacked by rows, in the compute type on the model's device.

        Args:
            parts: name and expected [out, in] of each; all with the same `in`.

        Raises:
            ModelFileError: one is missing or has another shape.
        """

    def quantised(self, *parts: tuple[str, tuple[int, int]]) -> list[QuantPlanes] | None:
        """The same matrices as they are stored, in planes on the model's device.

        Returns:
            Planes for each run of parts of one type, in order; None if a part has a type, or a
            width, that has no planes.
        """

    def stored(self, *parts: tuple[str, tuple[int, int]]) -> list[StoredMatrix]:
        """The same matrices as their file has them, on the host.

        Raises:
            ModelFileError: as `matrix`.
        """

    def vector(self, *parts: tuple[str, tuple[int]]) -> torch.Tensor:
        """Vectors laid end to end; as `matrix`."""

    def table(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        """A lookup table, in the stored type where that is exact and narrower."""

    def floats(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Small parameters of any shape in float32; there when this returns.

        Raises:
            ModelFileError: as `matrix`.
        """

    def experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The matrices of a layer's experts, however they are stored.

        Args:
            prefix: what their names begin with, `layers.0.mlp.experts.`.
            shape: of gate and of up: E, F, hidden.

        Returns:
            gate | up [E, 2F, hidden] and down [E, hidden, F], in the compute type.

        Raises:
            ModelFileError: as `matrix`.
        """

    def quantised_experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[QuantPlanes, QuantPlanes] | None:
        """The same matrices as they are stored, in planes, one expert's below the other's.

        Returns:
            gate | up, E * 2F rows, and down, E * hidden rows; None if one of them has no planes,
            or gate and up have different types.
        """

    def optional_vector(self, name: str, shape: tuple[int]) -> torch.Tensor | None:
        """A float32 vector that may be missing; there when this returns."""

    def finish(self) -> None:
        """Wait until everything returned so far is filled."""


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
