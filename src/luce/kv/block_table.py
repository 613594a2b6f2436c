"""What one sequence holds: its blocks in order, the keys of its full blocks, its checkpoints."""

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
        num_matched: leading blocks that were there at admission; more than `num_found` if no
            state was saved behind the last ones.
        restore_key: key of the checkpoint its row will start from, until it has.
        saving: checkpoint slots its steps under way save to, by position.
        follows: positions among `saving` whose checkpoints replace each other as it goes on;
            None: it has none of that kind.
        followed_key: key of the one that was kept last.
    """

    blocks: list[int]
    keys: list[bytes] = field(default_factory=list)
    num_committed: int = 0
    num_found: int = 0
    num_matched: int = 0
    restore_key: bytes | None = None
    saving: dict[int, int] = field(default_factory=dict)
    follows: set[int] | None = None
    followed_key: bytes | None = None
