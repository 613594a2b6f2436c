"""What one sequence holds: its blocks in order, and the keys of its full blocks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class BlockTable:
    """Blocks of one sequence; made, changed and released by `KVManager` only.

    Attributes:
        blocks: block ids; entry i holds positions `i * block_tokens ..`.
        keys: chained hashes of the leading full blocks whose tokens are known; empty without
            a prefix cache.
        num_committed: leading blocks that are computed and were offered to the prefix cache.
        num_found: leading blocks found in the prefix cache at admission.
    """

    blocks: list[int]
    keys: list[bytes] = field(default_factory=list)
    num_committed: int = 0
    num_found: int = 0
