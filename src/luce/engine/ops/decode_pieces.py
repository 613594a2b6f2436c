"""How contexts are cut for decode attention in CUDA C++.

A context has units of 16 tokens, and is cut into as few chunks as no more than `CHUNK_UNITS` make,
all but the last of one size. So the cut is a context's own, and what is summed in which order, too.

A list of pieces, i32 [1 + n, 4], says first how many there are (and three zeros), then of each what
sequence it is of and its row (in the upper half), the tokens of the context, the first unit and how
many, and which chunk it is of how many. Larger pieces come first, so that programs which take them
in turn end together.
"""

from __future__ import annotations

from collections.abc import Sequence

UNIT_TOKENS = 16
CHUNK_UNITS = 24
"""Most of a piece. Fewer: more programs for few rows, more partial results to write."""
MOST_TOKENS = UNIT_TOKENS << 16
"""Of a context: a piece has 16 bits for its first unit."""


def most_chunks(tokens: int) -> int:
    """Of a context of so many tokens, and of shorter ones."""
    return -(-tokens // (UNIT_TOKENS * CHUNK_UNITS))


def chunk_units(tokens: int) -> int:
    """Units of a chunk of a context, but the last."""
    return -(-_units(tokens) // most_chunks(tokens))


def _units(tokens: int) -> int:
    return -(-tokens // UNIT_TOKENS)


def pieces_of(lens: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """The list for contexts of so many tokens; row i is sequence i's."""
    pieces = []
    for sequence in sorted(range(len(lens)), key=lambda each: -chunk_units(lens[each])):
        size, units = chunk_units(lens[sequence]), _units(lens[sequence])
        firsts = range(0, units, size)
        pieces += [
            (
                sequence | sequence << 16,
                lens[sequence],
                first | min(size, units - first) << 16,
                chunk | len(firsts) << 16,
            )
            for chunk, first in enumerate(firsts)
        ]
    return [(len(pieces), 0, 0, 0), *pieces]
