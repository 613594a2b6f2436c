"""Turns stored tensor bytes into float32, vectorised; bit-equal to ggml's reference.

`dequantize` works on whole tensors and on any run of whole rows: a row starts on a block border,
so rows `a..b` of a matrix are the bytes `a*row_bytes..b*row_bytes` with shape `(b-a, columns)`.
Callers that must not hold a whole tensor as float32 go through it in such pieces.
Within a piece the work is done in chunks that stay in the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from luce.loaders.ggml_types import TYPES_BY_NAME
from luce.loaders.k_quants import (
    iq4_xs_blocks,
    q2_k_blocks,
    q3_k_blocks,
    q4_k_blocks,
    q5_k_blocks,
    q6_k_blocks,
)
from luce.loaders.simple_quants import (
    bf16_blocks,
    f16_blocks,
    f32_blocks,
    iq4_nl_blocks,
    mxfp4_blocks,
    q4_0_blocks,
    q4_1_blocks,
    q5_0_blocks,
    q5_1_blocks,
    q8_0_blocks,
)

BlockDecoder = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]
"""uint8 [N, block_bytes] → float32 [N, block_elements]."""

DEQUANTIZERS: dict[str, BlockDecoder] = {
    "F32": f32_blocks,
    "F16": f16_blocks,
    "BF16": bf16_blocks,
    "Q4_0": q4_0_blocks,
    "Q4_1": q4_1_blocks,
    "Q5_0": q5_0_blocks,
    "Q5_1": q5_1_blocks,
    "Q8_0": q8_0_blocks,
    "Q2_K": q2_k_blocks,
    "Q3_K": q3_k_blocks,
    "Q4_K": q4_k_blocks,
    "Q5_K": q5_k_blocks,
    "Q6_K": q6_k_blocks,
    "IQ4_NL": iq4_nl_blocks,
    "IQ4_XS": iq4_xs_blocks,
    "MXFP4": mxfp4_blocks,
}

_CHUNK_ELEMENTS = 1 << 17


def stored_bytes(type_name: str, shape: tuple[int, ...]) -> int:
    """Bytes a tensor (or a run of its rows) of this shape takes in the file.

    Raises:
        KeyError: the type is unknown.
        ValueError: rows do not fill whole blocks.
    """
    kind = TYPES_BY_NAME[type_name]
    row = shape[-1] if shape else 1
    if row % kind.block_elements:
        raise ValueError(f"rows of {row} do not fill {type_name} blocks of {kind.block_elements}")
    return math.prod(shape) // kind.block_elements * kind.block_bytes


def dequantize(
    type_name: str, raw: npt.NDArray[np.uint8], shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    """Decode a tensor or a run of its rows.

    Args:
        type_name: a key of `DEQUANTIZERS`.
        raw: uint8, flat: the stored bytes of exactly these rows.
        shape: torch order; the last dimension is a whole row.

    Returns:
        A new float32 array of that shape, also for F32.

    Raises:
        KeyError: the type cannot be decoded.
        ValueError: the bytes do not fit the shape.
    """
    decode = DEQUANTIZERS[type_name]
    kind = TYPES_BY_NAME[type_name]
    nbytes = stored_bytes(type_name, shape)
    if raw.size != nbytes:
        raise ValueError(f"{type_name} {list(shape)} takes {nbytes} bytes, not {raw.size}")
    out = np.empty(math.prod(shape), dtype=np.float32)
    blocks = raw.reshape(-1, kind.block_bytes)
    values = out.reshape(-1, kind.block_elements)
    step = max(1, _CHUNK_ELEMENTS // kind.block_elements)
    # Damaged scales may be infinite or NaN, and so are then the values: no matter for a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(blocks), step):
            values[start : start + step] = decode(blocks[start : start + step])
    return out.reshape(shape)
