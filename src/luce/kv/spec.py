"""What a model keeps per token: the one geometry planner, manager and tensors all read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KVKind = Literal["full"]

NULL_BLOCK = 0
"""Block 0 is never handed out: padding reads from it and padding lanes write to it."""


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Keys and values of one group of layers.

    Attributes:
        kind: full attention; other kinds get other groups.
        num_layers: layers of the group.
        block_tokens: tokens per block.
        num_kv_heads: K heads.
        head_dim: D.
        element_bytes: bytes of one stored element.
    """

    kind: KVKind
    num_layers: int
    block_tokens: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token over all layers of the group."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.element_bytes

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of one block over all layers of the group."""
        return self.bytes_per_token * self.block_tokens


def blocks_for(num_tokens: int, block_tokens: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_tokens)
