"""What a model is to the engine, and what it may ask of the loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from luce.engine.context import ForwardContext
from luce.engine.fp8_weights import Fp8Matrix, StoredPart
from luce.engine.native.tiles import StoredMatrix
from luce.engine.ops.step_tables import StepTables
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

    def fp8(self, *parts: tuple[str, tuple[int, int]]) -> list[StoredPart] | None:
        """The same matrices: those that are FP8 as they are stored, the others as `matrix`.

        Returns:
            What lies one below the other, in order; None if no part is FP8.

        Raises:
            ModelFileError: as `matrix`, or scales are missing or no finite numbers.
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

    def stored_experts(self, prefix: str, shape: tuple[int, int, int]) -> list[StoredMatrix] | None:
        """The same matrices as their file has them, on the host.

        Returns:
            gate and up, E * F rows each, and down, E * hidden rows; None if each expert is a
            tensor of its own, or gate and up are one.
        """

    def fp8_experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[Fp8Matrix, Fp8Matrix] | None:
        """The same matrices as FP8, one expert's below the other's, with bands of F and hidden.

        Returns:
            gate | up, E * 2F rows, and down, E * hidden rows; None if they are not FP8.

        Raises:
            ModelFileError: as `fp8`, or only some are FP8.
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

    @property
    def expert_loads(self) -> Sequence[torch.Tensor]:
        """Of each layer with a mixture the tokens its experts have had, i64 [E]."""

    def rotary(self, positions: torch.Tensor) -> torch.Tensor:
        """The rotary angles of i32 [T] positions, for the context."""

    @property
    def step_tables(self) -> StepTables:
        """What angles and embeddings are read from."""

    def forward(self, input_ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """i32 [T] → hidden states [T, hidden], normalised if `ctx` does not leave that; writes the
        step's KV.
        """

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, hidden] → [B, V] in the type they are computed in."""

    def normed_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same of hidden states that were not normalised."""
