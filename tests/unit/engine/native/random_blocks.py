"""Matrices of random stored blocks, and activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from luce.engine.native.tiles import StoredMatrix
from luce.loaders.ggml_types import TYPES_BY_NAME
from luce.loaders.quants import dequantize


@dataclass(frozen=True)
class RandomMatrix:
    """A stored matrix, and its values in float64."""

    stored: StoredMatrix
    values: np.ndarray


def random_matrix(type_name: str, rows: int, columns: int, seed: int = 0) -> RandomMatrix:
    """Any codes, with scales as models have them."""
    generator = np.random.default_rng(seed)
    kind = TYPES_BY_NAME[type_name]
    count = rows * columns // kind.block_elements
    blocks = generator.integers(0, 256, size=(count, kind.block_bytes), dtype=np.uint8)
    for start in half_places(type_name):
        scales = generator.uniform(0.001, 0.02, count) * generator.choice([-1, 1], count)
        blocks[:, start : start + 2] = scales.astype(np.float16)[:, None].view(np.uint8)
    if type_name == "MXFP4":
        blocks[:, 0] = generator.integers(115, 125, count)
    raw = blocks.reshape(-1)
    values = dequantize(type_name, raw, (rows, columns)).astype(np.float64)
    return RandomMatrix(StoredMatrix(type_name, (rows, columns), raw), values)


def half_places(type_name: str) -> tuple[int, ...]:
    """Where a block of a type has its float16."""
    last = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}
    both = {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}
    return last.get(type_name, (0, 2) if type_name in both else (0,))


def activations(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    """Normal numbers with some large ones, as activations have them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator)
    values[:, ::37] *= 20
    return values
