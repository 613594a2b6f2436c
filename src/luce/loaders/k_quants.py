"""Block decoders of the types with 256 elements a block: the K quants and IQ4_XS.

Each takes uint8 [N, block_bytes] and gives float32 [N, 256]. A block has sub-blocks of 16 or 32
elements with small integer scales of their own. Layouts and the order of the float32 operations
follow ggml, so results are equal to the last bit. Source: ggml's block definitions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.loaders.simple_quants import IQ4_CODES, Blocks, Values, half

_PAIRS = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
_BITS = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)


def _two_bit_codes(packed: Blocks) -> Blocks:
    """uint8 [N, 64] → [N, 256]: byte l of a half holds elements l, 32+l, 64+l and 96+l of it."""
    codes = packed.reshape(-1, 2, 1, 32) >> _PAIRS
    codes &= 3
    return codes.reshape(-1, 256)


def _chunk_nibbles(packed: Blocks) -> Blocks:
    """uint8 [N, 128] → [N, 8, 32]: of each 32 bytes first the low nibbles, then the high ones."""
    chunks = packed.reshape(-1, 4, 32)
    out = np.empty((len(packed), 4, 2, 32), dtype=np.uint8)
    np.bitwise_and(chunks, 0x0F, out=out[:, :, 0])
    np.right_shift(chunks, 4, out=out[:, :, 1])
    return out.reshape(-1, 8, 32)


def _six_bit_pairs(packed: Blocks) -> tuple[Values, Values]:
    """The 8 scales and 8 minima of Q4_K and Q5_K from their 12 bytes, each float32 [N, 8]."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def q2_k_blocks(blocks: Blocks) -> Values:
    scales, codes = blocks[:, :16], blocks[:, 16:80]
    factors = half(blocks, 80) * (scales & 0x0F).astype(np.float32)
    minima = half(blocks, 82) * (scales >> 4).astype(np.float32)
    values = _two_bit_codes(codes).astype(np.float32).reshape(-1, 16, 16)
    values *= factors[:, :, None]
    values -= minima[:, :, None]
    return values.reshape(-1, 256)


def _q3_k_scales(packed: Blocks) -> Values:
    """The 16 six-bit scales of Q3_K, less 32, from their 12 bytes: float32 [N, 16]."""
    low = np.concatenate([packed[:, :8] & 0x0F, packed[:, :8] >> 4], axis=1)
    high = (packed[:, None, 8:12] >> _PAIRS[0]) & 3
    scales: Values = (low | (high.reshape(-1, 16) << 4)).astype(np.float32)
    scales -= 32.0
    return scales


def q3_k_blocks(blocks: Blocks) -> Values:
    high_bits, low_bits = blocks[:, :32], blocks[:, 32:96]
    factors = half(blocks, 108) * _q3_k_scales(blocks[:, 96:108])
    # A set bit takes the offset of 4 away: code - 4 + 4 * bit.
    bits = (high_bits[:, None, :] >> _BITS) & 1
    codes = _two_bit_codes(low_bits) | (bits.reshape(-1, 256) << 2)
    values = codes.astype(np.float32).reshape(-1, 16, 16)
    values -= 4.0
    values *= factors[:, :, None]
    return values.reshape(-1, 256)


def _scaled_less_minimum(blocks: Blocks, codes: Blocks) -> Values:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    scales *= half(blocks, 0)
    minima *= half(blocks, 2)
    values = codes.astype(np.float32)
    values *= scales[:, :, None]
    values -= minima[:, :, None]
    return values.reshape(-1, 256)


def q4_k_blocks(blocks: Blocks) -> Values:
    return _scaled_less_minimum(blocks, _chunk_nibbles(blocks[:, 16:]))


def q5_k_blocks(blocks: Blocks) -> Values:
    codes = _chunk_nibbles(blocks[:, 48:])
    codes |= ((blocks[:, None, 16:48] >> _BITS) & 1) << 4
    return _scaled_less_minimum(blocks, codes)


def q6_k_blocks(blocks: Blocks) -> Values:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    nibbles = np.concatenate([low & 0x0F, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _PAIRS) & 3
    codes = nibbles | (high << 4)
    factors = half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    values: Values = codes.astype(np.float32).reshape(-1, 16, 16)
    values -= 32.0
    values *= factors[:, :, None]
    return values.reshape(-1, 256)


def iq4_xs_blocks(blocks: Blocks) -> Values:
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    high: npt.NDArray[np.uint16] = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    high_bits = ((high >> shifts) & 3).astype(np.uint8)
    packed = blocks[:, 4:8]
    low_bits = np.stack([packed & 0x0F, packed >> 4], axis=2).reshape(-1, 8)
    scales: Values = (low_bits | (high_bits << 4)).astype(np.float32)
    scales -= 32.0
    codes = blocks[:, 8:].reshape(-1, 8, 16)
    values: Values = IQ4_CODES[np.concatenate([codes & 0x0F, codes >> 4], axis=2)]
    values *= (half(blocks, 0) * scales)[:, :, None]
    return values.reshape(-1, 256)
