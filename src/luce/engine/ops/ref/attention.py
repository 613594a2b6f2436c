"""Paged attention, plainly: per sequence a gather, explicit scores, softmax in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from luce.engine.ops.attention import AttentionBatch, AttentionStep, HeadShape
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.ref.kv_cache import read_blocks


@dataclass(frozen=True, slots=True)
class ReferenceAttention:
    """The oracle the fast implementations are held against; runs on any device.

    Cost: materialises [H, query, context] scores of one sequence at a time.
    """

    heads: HeadShape

    def prepare(self, batch: AttentionBatch) -> AttentionStep:
        """Nothing to work out: the batch itself is the plan."""
        return _ReferenceStep(self.heads, batch)


@dataclass(frozen=True, slots=True)
class _ReferenceStep:
    heads: HeadShape
    batch: AttentionBatch

    def __call__(self, qkv: torch.Tensor, cache: KVCache) -> torch.Tensor:
        q = qkv[:, : self.heads.num_heads]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for sequence in range(self.batch.num_sequences):
            start, stop = self.batch.query_starts[sequence : sequence + 2]
            out[start:stop] = self._attend(sequence, q[start:stop], cache)
        return out.reshape(q.shape[0], -1)

    def _attend(self, sequence: int, q: torch.Tensor, cache: KVCache) -> torch.Tensor:
        length = self.batch.context_lens[sequence]
        blocks = self.batch.block_tables[sequence][: self.batch.num_blocks(sequence)]
        table = torch.tensor(blocks, dtype=torch.int64, device=q.device)
        context = read_blocks(cache, table, q.dtype).flatten(0, 1)[:length]
        keys, values = (
            context[:, part].repeat_interleave(self.heads.group, dim=1) for part in (0, 1)
        )
        scores = torch.einsum("qhd,khd->hqk", q, keys).float() / math.sqrt(self.heads.head_dim)
        query = torch.arange(length - q.shape[0], length, device=q.device).unsqueeze(1)
        hidden = torch.arange(length, device=q.device) > query
        weights = torch.softmax(scores.masked_fill(hidden, -math.inf), dim=-1).to(values.dtype)
        return torch.einsum("hqk,khd->qhd", weights, values)
