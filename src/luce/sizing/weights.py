"""Memory of a model's parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator

from luce.loaders.checkpoint import Checkpoint, TensorMeta, TensorSource
from luce.loaders.fp8_names import companions, is_fp8, scale_form, scales_of
from luce.loaders.quant_formats import GROUP, QUANT_FORMATS, QuantFormat, as_matrix, has_planes

_TILE_ROWS = 16
_SCALE_BYTES = 4
_EMBEDDING = "token_embd.weight"


def decoded_bytes(checkpoint: Checkpoint, element_bytes: int, *, packed: bool) -> int:
    """Memory of the parameters when every number is decoded.

    Args:
        checkpoint: whose headers say how many there are.
        element_bytes: of a decoded number.
        packed: matrices are repacked, so a tied embedding is stored as table and as matrix.
    """
    hparams, tensors = checkpoint.hparams, checkpoint.tensors
    elements = sum(math.prod(meta.shape) for meta in _parameters(tensors))
    if packed and hparams.tie_word_embeddings:
        elements += hparams.vocab_size * hparams.hidden_size
    return elements * element_bytes


def plane_bytes(checkpoint: Checkpoint, element_bytes: int) -> int:
    """Memory of the parameters on a GPU.

    What can stay quantised is in planes, FP8 matrices stay so with float32 scales, the rest is
    decoded.
    """
    tensors = checkpoint.tensors
    total = 0
    for meta in _parameters(tensors):
        if is_fp8(meta):
            total += meta.nbytes + _fp8_scale_bytes(tensors, meta)
        elif has_planes(meta):
            rows, columns = as_matrix(meta).shape
            total += rows * QUANT_FORMATS[meta.type].row_bytes(columns)
        else:
            total += math.prod(meta.shape) * element_bytes
    return total


def _parameters(tensors: TensorSource) -> Iterator[TensorMeta]:
    """All tensors but those that belong to FP8 matrices."""
    metas = [tensors.meta(name) for name in tensors.names()]
    beside = {each for meta in metas if is_fp8(meta) for each in companions(meta.name)}
    return (meta for meta in metas if meta.name not in beside)


def _fp8_scale_bytes(tensors: TensorSource, meta: TensorMeta) -> int:
    """Of an FP8 matrix: one a block, or else one a row, even if there is one in all."""
    scales = scales_of(tensors, meta.name)
    if scales is not None and scale_form(scales.shape, meta.shape) == "block":
        return _SCALE_BYTES * math.prod(scales.shape)
    return _SCALE_BYTES * meta.shape[0]


def tile_bytes(form: QuantFormat, rows: int, columns: int) -> int:
    """Memory of a matrix in the tiles that native CPU kernels read: `engine/native/matrix.c`.

    Args:
        form: of its stored type.
        rows: of the matrix; whole tiles of them are kept.
        columns: whole blocks of the type.
    """
    code_bits = form.codes.value + (0 if form.high is None else form.high.value)
    codes = GROUP if code_bits > 4 else GROUP // 2
    # Scales, and offsets where the type has them, in float16.
    numbers = (2 if form.groups_of_16 else 1) * (2 if form.has_offset else 1)
    padded = -(-rows // _TILE_ROWS) * _TILE_ROWS
    return padded * (columns // GROUP) * (codes + 2 * numbers)


def tiled_bytes(checkpoint: Checkpoint, element_bytes: int) -> int:
    """Memory of the parameters on a CPU with native kernels.

    Quantised matrices are in tiles, those of all experts as one, and a tied output matrix needs no
    second copy. The rest is decoded.
    """
    hparams, tensors = checkpoint.hparams, checkpoint.tensors
    total, is_table_tiled = 0, False
    for meta in _parameters(tensors):
        if has_planes(meta) and (len(meta.shape) == 2 or meta.shape[1] % GROUP == 0):
            total += tile_bytes(QUANT_FORMATS[meta.type], *as_matrix(meta).shape)
            is_table_tiled = is_table_tiled or meta.name == _EMBEDDING
        else:
            total += math.prod(meta.shape) * element_bytes
    if hparams.tie_word_embeddings and not is_table_tiled:
        total += hparams.vocab_size * hparams.hidden_size * element_bytes
    return total
