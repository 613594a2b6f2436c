"""Which tensors a model must have, with their shapes, and the check of a checkpoint's against it.

Done before anything is read, so that a damaged or foreign file is one clear error instead of
a fault at first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from luce.errors import ModelFileError
from luce.loaders.checkpoint import Container, TensorMeta
from luce.loaders.fp8_names import (
    FP8_TYPE,
    SCALE_NAMES,
    companions,
    is_fp8,
    scale_form,
    scales_of,
)
from luce.loaders.hparams import HParams
from luce.loaders.mapped import MappedTensors
from luce.loaders.model_tensors import Shape, expert_form, model_tensors, stored_shape
from luce.loaders.quants import DEQUANTIZERS
from luce.loaders.tensor_names import stored_names

# Stored by some writers though they can be computed, or copies of tied tensors.
_IGNORED = re.compile(r"(model\.layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq|lm_head\.weight")
_LLAMA3_FACTORS = "rope_freqs.weight"


def _expected(
    container: Container, hparams: HParams, tensors: MappedTensors
) -> Iterator[tuple[str, Shape]]:
    """Stored name and torch-order shape of every tensor the model is computed from."""
    stored_name = stored_names(container, hparams.architecture, tensors.names())
    form = expert_form(container, stored_name, tensors.__contains__)
    for name, shape in model_tensors(hparams, form):
        yield stored_name(name), stored_shape(container, name, shape)


def check_tensors(
    container: Container, hparams: HParams, tensors: MappedTensors, source: object
) -> None:
    """Hold a checkpoint's tensors against what its hyper-parameters promise.

    Args:
        source: file or folder, for messages.

    Raises:
        ModelFileError: a tensor is missing, has another shape, has a type that cannot be
            computed with, or is not part of such a model.
    """
    wanted: set[str] = set()
    for name, shape in _expected(container, hparams, tensors):
        if name not in tensors:
            raise ModelFileError(f"{source}: tensor {name!r} {list(shape)} is missing")
        _check_one(tensors, name, shape, source)
        wanted.add(name)
        if tensors.meta(name).type == FP8_TYPE:
            wanted.update(companions(name))
    if container == "gguf" and _LLAMA3_FACTORS in tensors:
        _check_one(tensors, _LLAMA3_FACTORS, (hparams.rotated_dim // 2,), source)
        wanted.add(_LLAMA3_FACTORS)
    for name in tensors.names():
        if name not in wanted and _IGNORED.fullmatch(name) is None:
            raise ModelFileError(
                f"{source}: tensor {name!r} is not part of a {hparams.architecture} model of "
                f"{hparams.num_layers} layers as luce knows it"
            )


def _check_one(tensors: MappedTensors, name: str, shape: Shape, source: object) -> None:
    meta = tensors.meta(name)
    if meta.shape != shape:
        raise ModelFileError(
            f"{source}: tensor {name!r} should be {list(shape)} by the hyper-parameters, but is "
            f"{list(meta.shape)}"
        )
    if is_fp8(meta):
        _check_scales(tensors, meta, source)
    elif meta.type not in DEQUANTIZERS:
        raise ModelFileError(
            f"{source}: tensor {name!r} has type {meta.type}, which luce cannot compute with yet "
            f"(supported: {', '.join(DEQUANTIZERS)})"
        )


def _check_scales(tensors: MappedTensors, meta: TensorMeta, source: object) -> None:
    scales = scales_of(tensors, meta.name)
    if scales is None:
        stem = meta.name.removesuffix("weight")
        raise ModelFileError(
            f"{source}: tensor {meta.name!r} has type {meta.type}, but its scales are missing "
            f"({' or '.join(stem + each for each in SCALE_NAMES)})"
        )
    if scale_form(scales.shape, meta.shape) is None:
        raise ModelFileError(
            f"{source}: tensor {scales.name!r} is {list(scales.shape)}, which are no scales of "
            f"{meta.name!r} {list(meta.shape)}"
        )
