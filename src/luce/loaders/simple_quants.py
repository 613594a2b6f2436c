"""Block decoders of the plain floats and of the types with 32 elements a block.

Each takes uint8 [N, block_bytes] and gives float32 [N, block_elements]. Layouts and the order
of the float32 operations follow ggml, so results are equal to the last bit.
Source: ggml's block definitions; the MXFP4 codes are E2M1, doubled, beside halved E8M0 scales.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Blocks = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]

IQ4_CODES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)
_E2M1_DOUBLED = np.array(
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32
)


def half(blocks: Blocks, start: int) -> Values:
    """The float16 at byte `start` of each block as float32 [N, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def nibbles(packed: Blocks) -> Blocks:
    """uint8 [N, 16] → [N, 32]: all low nibbles, then all high ones."""
    out = np.empty((packed.shape[0], 2 * packed.shape[1]), dtype=np.uint8)
    np.bitwise_and(packed, 0x0F, out=out[:, : packed.shape[1]])
    np.right_shift(packed, 4, out=out[:, packed.shape[1] :])
    return out


def _fifth_bits(blocks: Blocks, start: int) -> Blocks:
    """The 32 bits at byte `start` as 0 or 16, element by element: [N, 32]."""
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    return np.left_shift(bits, 4, out=bits)


def f32_blocks(blocks: Blocks) -> Values:
    return np.ascontiguousarray(blocks).view(np.float32)


def f16_blocks(blocks: Blocks) -> Values:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def bf16_blocks(blocks: Blocks) -> Values:
    words = np.ascontiguousarray(blocks).view(np.uint16).astype(np.uint32)
    return np.left_shift(words, 16, out=words).view(np.float32)


def q4_0_blocks(blocks: Blocks) -> Values:
    values = nibbles(blocks[:, 2:]).astype(np.float32)
    values -= 8.0
    values *= half(blocks, 0)
    return values


def q4_1_blocks(blocks: Blocks) -> Values:
    values = nibbles(blocks[:, 4:]).astype(np.float32)
    values *= half(blocks, 0)
    values += half(blocks, 2)
    return values


def q5_0_blocks(blocks: Blocks) -> Values:
    codes = nibbles(blocks[:, 6:])
    codes |= _fifth_bits(blocks, 2)
    values = codes.astype(np.float32)
    values -= 16.0
    values *= half(blocks, 0)
    return values


def q5_1_blocks(blocks: Blocks) -> Values:
    codes = nibbles(blocks[:, 8:])
    codes |= _fifth_bits(blocks, 4)
    values = codes.astype(np.float32)
    values *= half(blocks, 0)
    values += half(blocks, 2)
    return values


def q8_0_blocks(blocks: Blocks) -> Values:
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= half(blocks, 0)
    return values


def iq4_nl_blocks(blocks: Blocks) -> Values:
    values = IQ4_CODES[nibbles(blocks[:, 2:])]
    values *= half(blocks, 0)
    return values


def mxfp4_blocks(blocks: Blocks) -> Values:
    # Exponents 0 and 1 give the float32 subnormals 2^-128 and 2^-127, which ldexp gets right.
    scales = np.ldexp(np.float32(1.0), blocks[:, :1].astype(np.int32) - 128)
    values = _E2M1_DOUBLED[nibbles(blocks[:, 1:])]
    values *= scales.astype(np.float32)
    return values
