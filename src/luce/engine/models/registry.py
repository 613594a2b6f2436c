"""Which code runs which architecture."""

from __future__ import annotations

from collections.abc import Callable

from luce.engine.models.base import Model, Parameters
from luce.engine.models.dense import DenseBuilder, DenseModel
from luce.engine.ops.select import OpSet
from luce.errors import ModelFileError
from luce.loaders.hparams import HParams

ModelBuilder = Callable[[HParams, Parameters, OpSet, int], Model]


def _dense(hparams: HParams, parameters: Parameters, ops: OpSet, max_positions: int) -> Model:
    return DenseModel(DenseBuilder(hparams, parameters, ops, max_positions))


BUILDERS: dict[str, ModelBuilder] = {"llama": _dense, "qwen2": _dense, "qwen3": _dense}


def builder_for(architecture: str) -> ModelBuilder:
    """The builder of an architecture.

    Raises:
        ModelFileError: there is none; the message lists those there are.
    """
    builder = BUILDERS.get(architecture)
    if builder is None:
        raise ModelFileError(
            f"architecture {architecture!r} is not supported (supported: {', '.join(BUILDERS)})"
        )
    return builder
