"""Paged attention on a CPU: sequences of like length share one gather and one fused call.

Sequences with one query (decode) are grouped so that none is padded to more than twice its own
blocks: a long one costs the short ones nothing. Query heads of a KV head are the rows of one
product, so grouped heads are never repeated in memory. Groups, gathers and masks are worked out
once per step and serve all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from luce.engine.ops.attention import AttentionBatch, AttentionStep, HeadShape
from luce.engine.ops.kv_cache import KVCache, TypedCache
from luce.engine.ops.ref.kv_cache import read_blocks
from luce.kv.spec import NULL_BLOCK

_MAX_PADDING = 2
# Keys and values a group of several gathers: a quarter of a usual last-level cache. Measured at
# 16 sequences of 2000 tokens: 186 ms a step, against 271 with all in one gather.
_MAX_GATHER_BYTES = 8 << 20


class Scratch:
    """Memory that gathers write to, kept between layers and steps.

    Fresh memory would be mapped and faulted in anew for every layer: at 8000 tokens that took
    longer than the attention itself.
    """

    def __init__(self) -> None:
        self._kept: torch.Tensor | None = None

    def blocks(self, count: int, cache: torch.Tensor) -> torch.Tensor:
        """Room for `count` blocks of the cache's shape."""
        if self._kept is None or self._kept.shape[0] < count:
            self._kept = None  # the smaller one goes before the larger one comes
            self._kept = cache.new_empty(count, *cache.shape[1:])
        return self._kept[:count]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Which blocks to read: a run of neighbours is a view, anything else a gather."""

    first: int
    count: int
    table: torch.Tensor | None

    def read(self, cache: KVCache, shared: Shared) -> torch.Tensor:
        """[count, P, 2, K, D] in the computing type, valid until the next read."""
        if isinstance(cache, TypedCache):
            return read_blocks(cache, self._table(), shared.dtype)
        if self.table is None:
            return cache[self.first : self.first + self.count]
        out = shared.scratch.blocks(self.count, cache)
        torch.index_select(cache, 0, self.table, out=out)
        return out

    def _table(self) -> torch.Tensor:
        if self.table is None:
            return torch.arange(self.first, self.first + self.count)
        return self.table.long()


def _blocks(table: list[int]) -> _Blocks:
    first, count = table[0], len(table)
    if table == list(range(first, first + count)):
        return _Blocks(first, count, None)
    return _Blocks(first, count, torch.tensor(table, dtype=torch.int32))


@dataclass(frozen=True, slots=True)
class Shared:
    """What every group and chunk of every step uses."""

    heads: HeadShape
    scratch: Scratch
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences with one query each.

    Attributes:
        tokens: i64 [n] tokens of the step, or None when they are the first n in order.
        length: S, tokens of the longest context.
        blocks: their tables, each padded to the longest with the null block.
        hidden: [n, S], true behind the end of a shorter context; None when all are equally long.
        mask: [n, 1, 1, S] to add to the scores where there is `hidden`.
    """

    num_sequences: int
    tokens: torch.Tensor | None
    length: int
    blocks: _Blocks
    hidden: torch.Tensor | None
    mask: torch.Tensor | None

    def attend(self, qkv: torch.Tensor, cache: KVCache, shared: Shared) -> torch.Tensor:
        """[n, H * D]."""
        heads = shared.heads
        n, k = self.num_sequences, heads.num_kv_heads
        context = self.blocks.read(cache, shared).view(n, -1, 2, k, heads.head_dim)[
            :, : self.length
        ]
        if self.hidden is not None:
            # A weight of 0 does not hide what a broken owner left there: 0 times NaN is NaN.
            context.masked_fill_(self.hidden[:, :, None, None, None], 0)
        keys, values = context.permute(2, 0, 3, 1, 4).unbind(0)
        mine = qkv[:n] if self.tokens is None else qkv.index_select(0, self.tokens)
        queries = mine[:, : heads.num_heads].view(n, k, heads.group, heads.head_dim)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask)
        return out.reshape(n, -1)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A run of one sequence's tokens.

    Attributes:
        start: first token of the step; `stop` is one past the last.
        length: S, tokens of the context.
        blocks: the whole context, or None when the chunk is the whole context.
        mask: [query, S] to add to the scores, or None when the chunk is the whole context.
    """

    start: int
    stop: int
    length: int
    blocks: _Blocks | None
    mask: torch.Tensor | None

    def attend(self, qkv: torch.Tensor, cache: KVCache, shared: Shared) -> torch.Tensor:
        """[query, H * D]."""
        heads = shared.heads
        k, dim = heads.num_kv_heads, heads.head_dim
        own = qkv[self.start : self.stop]
        if self.blocks is None:
            keys, values = own[:, heads.num_heads :].view(-1, 2, k, dim).unbind(1)
        else:
            context = self.blocks.read(cache, shared).flatten(0, 1)[: self.length]
            keys, values = context.unbind(1)
        # [K, group, query, D] against [K, 1 (group), S, D]: the group axis has stride 0.
        queries = own[:, : heads.num_heads].view(-1, k, heads.group, dim).permute(1, 2, 0, 3)
        shape = (k, heads.group, keys.shape[0], dim)
        keys, values = (part.transpose(0, 1).unsqueeze(1).expand(shape) for part in (keys, values))
        out = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=self.mask, is_causal=self.mask is None
        )
        return out.permute(2, 0, 1, 3).reshape(self.stop - self.start, heads.num_heads * dim)


class GroupedAttention:
    """Paged attention out of PyTorch's fused CPU kernel.

    Args:
        heads: geometry.
        dtype: what is computed in.
        rereads: a chunk's own keys and values are read from the cache, as they came out of it: a
            typed cache rounds them, and a prompt is to give the same in one chunk or in many.
    """

    def __init__(self, heads: HeadShape, dtype: torch.dtype, *, rereads: bool = False) -> None:
        self._shared = Shared(heads, Scratch(), dtype)
        self._rereads = rereads
        self._dtype = dtype

    def prepare(self, batch: AttentionBatch) -> AttentionStep:
        """Group the step's sequences."""
        singles: list[int] = []
        chunks: list[_Chunk] = []
        for sequence in range(batch.num_sequences):
            if batch.query_len(sequence) == 1:
                singles.append(sequence)
            else:
                chunks.append(self._chunk(batch, sequence))
        groups = [self._decode_group(batch, group) for group in self._groups(batch, singles)]
        return _GroupedStep(self._shared, groups, chunks)

    def _groups(self, batch: AttentionBatch, sequences: list[int]) -> list[list[int]]:
        heads = self._shared.heads
        token_bytes = 2 * heads.num_kv_heads * heads.head_dim * self._dtype.itemsize
        max_blocks = _MAX_GATHER_BYTES // (token_bytes * batch.block_tokens)
        return _grouped(batch, sequences, max_blocks)

    def _decode_group(self, batch: AttentionBatch, sequences: list[int]) -> _DecodeGroup:
        width = max(batch.num_blocks(sequence) for sequence in sequences)
        flat: list[int] = []
        for sequence in sequences:
            count = batch.num_blocks(sequence)
            flat.extend(batch.block_tables[sequence][:count])
            flat.extend([NULL_BLOCK] * (width - count))
        starts = [batch.query_starts[sequence] for sequence in sequences]
        lengths = [batch.context_lens[sequence] for sequence in sequences]
        hidden = self._padding(lengths)
        return _DecodeGroup(
            num_sequences=len(sequences),
            tokens=None if starts == list(range(len(starts))) else torch.tensor(starts),
            length=max(lengths),
            blocks=_blocks(flat),
            hidden=hidden,
            mask=None if hidden is None else self._mask(hidden)[:, None, None, :],
        )

    @staticmethod
    def _padding(lengths: list[int]) -> torch.Tensor | None:
        longest = max(lengths)
        if min(lengths) == longest:
            return None
        return torch.arange(longest) >= torch.tensor(lengths).unsqueeze(1)

    def _mask(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -torch.inf)

    def _chunk(self, batch: AttentionBatch, sequence: int) -> _Chunk:
        start, stop = batch.query_starts[sequence : sequence + 2]
        length = batch.context_lens[sequence]
        if length == stop - start and not self._rereads:
            return _Chunk(start, stop, length, None, None)
        blocks = _blocks(list(batch.block_tables[sequence][: batch.num_blocks(sequence)]))
        positions = torch.arange(length)
        queries = torch.arange(length - (stop - start), length).unsqueeze(1)
        hidden = positions > queries
        return _Chunk(start, stop, length, blocks, self._mask(hidden))


def _grouped(batch: AttentionBatch, sequences: list[int], max_blocks: int) -> list[list[int]]:
    """Split so that a group is of like length and its gather stays in the cache.

    Nobody is padded to more than `_MAX_PADDING` times its blocks, and a group of several reads
    at most `max_blocks`.
    """
    counts = {sequence: batch.num_blocks(sequence) for sequence in sequences}
    groups: list[list[int]] = []
    width = 0
    # A group's first is its longest. Stable: sequences of one length stay in order.
    for sequence in sorted(sequences, key=lambda each: counts[each], reverse=True):
        is_alike = width <= _MAX_PADDING * counts[sequence]
        if groups and is_alike and width * (len(groups[-1]) + 1) <= max_blocks:
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
            width = counts[sequence]
    # The step's order spares a single group the gather of its queries.
    return [sorted(group) for group in groups]


@dataclass(frozen=True, slots=True)
class _GroupedStep:
    shared: Shared
    groups: list[_DecodeGroup]
    chunks: list[_Chunk]

    def __call__(self, qkv: torch.Tensor, cache: KVCache) -> torch.Tensor:
        num_tokens = qkv.shape[0]
        if len(self.groups) == 1 and self.groups[0].num_sequences == num_tokens:
            return self.groups[0].attend(qkv, cache, self.shared)
        heads = self.shared.heads
        out = qkv.new_empty(num_tokens, heads.num_heads * heads.head_dim)
        for group in self.groups:
            attended = group.attend(qkv, cache, self.shared)
            if group.tokens is None:
                out[: group.num_sequences] = attended
            else:
                out.index_copy_(0, group.tokens, attended)
        for chunk in self.chunks:
            out[chunk.start : chunk.stop] = chunk.attend(qkv, cache, self.shared)
        return out
