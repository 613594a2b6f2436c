"""Which code runs which architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from luce.engine.models.base import Model, Parameters
from luce.engine.models.dense import DenseBuilder, DenseModel
from luce.engine.models.qwen35 import HybridBuilder
from luce.engine.ops.select import OpSet
from luce.errors import ModelFileError
from luce.kv.spec import KVSpec, StateSpec
from luce.loaders.hparams import HParams
from luce.sizing.geometry import kv_spec, state_spec


@dataclass(frozen=True, slots=True)
class Family:
    """How models of an architecture are built.

    Attributes:
        build: from hyper-parameters, parameters, operations and the longest sequence.
        kv_spec: from hyper-parameters, tokens of a block and bytes of an element: what a model
            keeps per token, known before it is built.
        state_spec: from hyper-parameters and bytes of an element: what a model keeps per
            sequence beside that, None for nothing.
    """

    build: Callable[[HParams, Parameters, OpSet, int], Model]
    kv_spec: Callable[[HParams, int, int], KVSpec]
    state_spec: Callable[[HParams, int], StateSpec | None]


def _build_dense(hparams: HParams, parameters: Parameters, ops: OpSet, max_positions: int) -> Model:
    return DenseModel(DenseBuilder(hparams, parameters, ops, max_positions))


def _build_hybrid(
    hparams: HParams, parameters: Parameters, ops: OpSet, max_positions: int
) -> Model:
    return DenseModel(HybridBuilder(hparams, parameters, ops, max_positions))


_DENSE = Family(_build_dense, kv_spec, state_spec)
_HYBRID = Family(_build_hybrid, kv_spec, state_spec)
FAMILIES: dict[str, Family] = {
    "llama": _DENSE,
    "qwen2": _DENSE,
    "qwen3": _DENSE,
    "qwen3moe": _DENSE,
    "qwen35": _HYBRID,
    "qwen35moe": _HYBRID,
}


def family_of(architecture: str) -> Family:
    """The family of an architecture.

    Raises:
        ModelFileError: there is none; the message lists those there are.
    """
    family = FAMILIES.get(architecture)
    if family is None:
        raise ModelFileError(
            f"architecture {architecture!r} is not supported (supported: {', '.join(FAMILIES)})"
        )
    return family
