"""Random numbers as a function of (seed, output index): no state, so no order to depend on."""

from __future__ import annotations

_MASK_32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MANTISSA_BITS = 53


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10: four 32-bit words from a counter and a key.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = (
            (second >> 32) ^ b ^ left,
            second & _MASK_32,
            (first >> 32) ^ d ^ right,
            first & _MASK_32,
        )
        left, right = (left + _WEYL[0]) & _MASK_32, (right + _WEYL[1]) & _MASK_32
    return a, b, c, d


def uniform(seed: int, output_index: int) -> float:
    """A number in [0, 1) with 53 random bits, for a seed below 2**64 and an index."""
    counter = (output_index & _MASK_32, output_index >> 32, 0, 0)
    high, low, _, _ = philox(counter, (seed & _MASK_32, seed >> 32))
    return ((high << 32 | low) >> (64 - _MANTISSA_BITS)) / (1 << _MANTISSA_BITS)
