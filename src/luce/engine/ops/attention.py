"""Attention over paged keys and values: what it is given and what it returns.

Shapes: T tokens of the step, B sequences, H query heads, K KV heads, D head dim, N blocks,
P tokens per block, M block-table width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from luce.engine.ops.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Geometry of the attention heads of a model.

    Attributes:
        num_heads: H.
        num_kv_heads: K; divides H, query head h reads KV head h // (H / K).
        head_dim: D; scores are scaled by 1 / sqrt(D).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class AttentionTensors:
    """What an `AttentionBatch` says, on the device; sequences with one query come first.

    Attributes:
        block_tables: i32 [rows, M]: the blocks of every row, whether it takes part or not.
        rows: i32 [B]: the row of each sequence.
        context_lens: i32 [B]: tokens it attends to.
        query_starts: i32 [B+1]: offsets of the sequences' tokens.
        num_decode: leading sequences that have one query each.
        max_queries: most tokens of any other.
        order: i32 [3, num_decode]: the leading sequences by falling length, their rows, their
            lengths. Long ones begin first, so that none is left over at the end. None: as they are.
        pieces: i32 [1 + n, 4]: what their contexts are cut into, see `decode_pieces`; for kernels
            that take them so.
        gates: [T, (2H + 2K) * D], with each query head's gate behind room for its query: results
            of the leading sequences are multiplied by its sigmoid. For kernels that do so.
    """

    block_tables: torch.Tensor
    rows: torch.Tensor
    context_lens: torch.Tensor
    query_starts: torch.Tensor
    num_decode: int
    max_queries: int
    order: torch.Tensor | None = None
    pieces: torch.Tensor | None = None
    gates: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Who attends to what in one step; sequences are contiguous runs of the step's tokens.

    Attributes:
        query_starts: B+1 offsets of the sequences' tokens.
        context_lens: per sequence, tokens it attends to: those before this step and its own.
        block_tables: per sequence, the blocks that hold them, in order.
        block_tokens: P.
        tensors: the same on the device, where the step was laid out there; the tuples may then
            be empty.
    """

    query_starts: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: tuple[tuple[int, ...], ...]
    block_tokens: int
    tensors: AttentionTensors | None = None

    @property
    def num_sequences(self) -> int:
        """B."""
        return len(self.context_lens)

    def query_len(self, sequence: int) -> int:
        """Tokens of a sequence in this step."""
        return self.query_starts[sequence + 1] - self.query_starts[sequence]

    def num_blocks(self, sequence: int) -> int:
        """Blocks a sequence's context takes."""
        return -(-self.context_lens[sequence] // self.block_tokens)


class AttentionStep(Protocol):
    """Attention prepared for one step; called once per layer."""

    def __call__(self, qkv: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """Causal attention of the step's tokens.

        Args:
            qkv: [T, H + 2K, D]: queries and keys, rotated, and values. The keys and values are
                in the cache already.
            cache: [N, P, 2, K, D], or a typed one.

        Returns:
            [T, H * D]. Softmax is in float32 whatever the inputs are.
        """


class PagedAttention(Protocol):
    """An implementation of paged attention."""

    def prepare(self, batch: AttentionBatch) -> AttentionStep:
        """Work out once what all layers of the step share: groups, gathers, masks."""
