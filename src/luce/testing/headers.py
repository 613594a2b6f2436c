"""Checkpoints that are headers alone: for whoever plans and never reads a weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from luce.loaders.checkpoint import Checkpoint, TensorMeta
from luce.loaders.hparams import HParams
from luce.loaders.model_tensors import model_tensors

SMALL = HParams(
    architecture="llama",
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    rope_scaling=None,
    rope_layout="half",
    context_length=4096,
    tie_word_embeddings=True,
    attention_bias=False,
    qk_norm=False,
)


class Headers:
    """A tensor source without bytes."""

    def __init__(self, metas: Sequence[TensorMeta]) -> None:
        self._metas = {meta.name: meta for meta in metas}

    def names(self) -> Iterator[str]:
        return iter(self._metas)

    def meta(self, name: str) -> TensorMeta:
        return self._metas[name]

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        raise AssertionError(f"{name} was read")


def header_checkpoint(metas: Sequence[TensorMeta] | None = None, **hparams: Any) -> Checkpoint:
    """A checkpoint of these tensors, or of every one its hyper-parameters ask for, as BF16.

    Args:
        metas: the tensors.
        hparams: what differs from `SMALL`.
    """
    found = replace(SMALL, **hparams)
    if metas is None:
        metas = [
            TensorMeta(name, "BF16", shape, 2 * int(np.prod(shape)))
            for name, shape in model_tensors(found, "fused")
        ]
    return Checkpoint(
        container="safetensors",
        architecture=found.architecture,
        name="x",
        hparams=found,
        tensors=Headers(metas),
        file_bytes=sum(meta.nbytes for meta in metas),
    )
