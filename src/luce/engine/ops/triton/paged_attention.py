"""Paged attention out of the two kernels: decode rows first, runs of tokens behind them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from luce.engine.ops.attention import (
    AttentionBatch,
    AttentionStep,
    AttentionTensors,
    HeadShape,
)
from luce.engine.ops.decode_pieces import pieces_of
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.triton.paged_attention_decode import (
    DecodeAttention,
    DecodeScratch,
    decode_attention,
)
from luce.engine.ops.triton.paged_attention_prefill import (
    PrefillAttention,
    prefill_attention,
)
from luce.kv.spec import NULL_BLOCK


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """Those that attend.

    Attributes:
        prefill: for runs of tokens.
        decode: for sequences with one query.
        takes_gates: whether that one minds `AttentionTensors.gates`.
    """

    prefill: PrefillAttention = prefill_attention
    decode: DecodeAttention = decode_attention
    takes_gates: bool = False


_PLAIN = AttentionKernels()


class TritonAttention:
    """Attention on a device. One step at a time: steps share the scratch memory.

    Args:
        heads: geometry.
        lanes: most sequences of a step that have one query.
        max_ctx: longest context in tokens.
        device: where.
        kernels: what is launched.
    """

    def __init__(
        self,
        heads: HeadShape,
        lanes: int,
        max_ctx: int,
        device: torch.device,
        kernels: AttentionKernels = _PLAIN,
    ) -> None:
        self._heads = heads
        self._device = device
        self._kernels = kernels
        self._scratch = DecodeScratch.make(heads, lanes, max_ctx, device)

    def prepare(self, batch: AttentionBatch) -> AttentionStep:
        """Take the batch's tensors, or make them where the step was laid out on the host."""
        tensors = batch.tensors
        if tensors is None:
            tensors = tensors_of(batch, self._device)
        return TritonStep(self._heads, tensors, self._scratch, self._kernels)


@dataclass(frozen=True, slots=True)
class TritonStep:
    """Attention of one step.

    Attributes:
        heads: geometry.
        tensors: of the step.
        scratch: for partial results.
        kernels: what is launched.
    """

    heads: HeadShape
    tensors: AttentionTensors
    scratch: DecodeScratch
    kernels: AttentionKernels

    def __call__(self, qkv: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """See `ops.attention.AttentionStep`."""
        return self._attend(qkv, cache, self.tensors)

    @property
    def num_gated(self) -> int:
        """Leading tokens whose gates `gated` minds."""
        return self.tensors.num_decode if self.kernels.takes_gates else 0

    def gated(self, qkv: torch.Tensor, cache: KVCache, gates: torch.Tensor) -> torch.Tensor:
        """The same, with gates for those (`AttentionTensors.gates`)."""
        return self._attend(qkv, cache, replace(self.tensors, gates=gates))

    def _attend(self, qkv: torch.Tensor, cache: KVCache, tensors: AttentionTensors) -> torch.Tensor:
        out = qkv.new_empty(qkv.shape[0], self.heads.num_heads * self.heads.head_dim)
        if tensors.num_decode:
            self.kernels.decode(qkv, cache, tensors, self.heads, self.scratch, out)
        if tensors.num_decode < tensors.rows.shape[0]:
            self.kernels.prefill(qkv, cache, tensors, self.heads, out)
        return out


def tensors_of(batch: AttentionBatch, device: torch.device) -> AttentionTensors:
    """A batch laid out on the host, on the device; row i is sequence i.

    Leading sequences with one query are decoded; one that stands behind a longer one is a run of
    one token.
    """
    lens = [batch.query_len(sequence) for sequence in range(batch.num_sequences)]
    num_decode = next((index for index, count in enumerate(lens) if count != 1), len(lens))
    width = max(len(table) for table in batch.block_tables)
    tables = [[*table, *[NULL_BLOCK] * (width - len(table))] for table in batch.block_tables]

    pieces = pieces_of(batch.context_lens[:num_decode])

    def moved(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32).to(device)

    return AttentionTensors(
        block_tables=moved(tables),
        rows=moved(range(len(lens))),
        context_lens=moved(batch.context_lens),
        query_starts=moved(batch.query_starts),
        num_decode=num_decode,
        max_queries=max(lens[num_decode:], default=0),
        pieces=moved(pieces) if num_decode else None,
    )
