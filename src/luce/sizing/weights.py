"""Memory of a model's parameters."""

from __future__ import annotations

import math

from luce.loaders.checkpoint import Checkpoint
from luce.loaders.quant_formats import QUANT_FORMATS, as_matrix, has_planes


def decoded_bytes(checkpoint: Checkpoint, element_bytes: int, *, packed: bool) -> int:
    """Memory of the parameters when every number is decoded.

    Args:
        checkpoint: whose headers say how many there are.
        element_bytes: of a decoded number.
        packed: matrices are repacked, so a tied embedding is stored as table and as matrix.
    """
    hparams, tensors = checkpoint.hparams, checkpoint.tensors
    elements = sum(math.prod(tensors.meta(name).shape) for name in tensors.names())
    if packed and hparams.tie_word_embeddings:
        elements += hparams.vocab_size * hparams.hidden_size
    return elements * element_bytes


def plane_bytes(checkpoint: Checkpoint, element_bytes: int) -> int:
    """Memory of the parameters on a GPU: what can stay quantised is in planes, the rest decoded."""
    tensors = checkpoint.tensors
    total = 0
    for name in tensors.names():
        meta = tensors.meta(name)
        if has_planes(meta):
            rows, columns = as_matrix(meta).shape
            total += rows * QUANT_FORMATS[meta.type].row_bytes(columns)
        else:
            total += math.prod(meta.shape) * element_bytes
    return total
