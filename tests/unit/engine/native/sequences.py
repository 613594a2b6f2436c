"""Random sequences whose attention is computed natively and by its definition."""

from __future__ import annotations

import math

import torch

from luce.engine.kv_tensors import TypedKVTensors
from luce.engine.ops.attention import AttentionBatch, HeadShape
from luce.engine.ops.cpu.native import NativeAttention, NativeOps, NativePlaceQkv
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.qkv import TokenPlaces
from luce.engine.ops.ref.kv_cache import decode, encode
from luce.kv.spec import KVSpec, KVType


class Sequences:
    """Random queries, keys and values of some sequences, of which all but the last are cached."""

    def __init__(
        self,
        heads: HeadShape,
        lengths: list[int],
        block_tokens: int,
        types: tuple[KVType, KVType] | None = None,
    ) -> None:
        self.heads, self.lengths, self.block_tokens = heads, lengths, block_tokens
        generator = torch.Generator().manual_seed(7)
        width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
        self.packed = [torch.randn(length, width, generator=generator) for length in lengths]
        needed = [-(-length // block_tokens) for length in lengths]
        order = (torch.randperm(sum(needed), generator=generator) + 1).tolist()
        self.tables = [
            tuple(order[sum(needed[:index]) : sum(needed[: index + 1])])
            for index in range(len(lengths))
        ]
        self.types = types
        self.cache = self._cache(sum(needed) + 1)

    def _cache(self, blocks: int) -> KVCache:
        """Of which what nobody wrote must not matter."""
        heads = self.heads
        if self.types is None:
            shape = (blocks, self.block_tokens, 2, heads.num_kv_heads, heads.head_dim)
            return torch.full(shape, float("nan"))
        spec = KVSpec(
            kind="full",
            num_layers=1,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            element_bytes=4,
            block_tokens=self.block_tokens,
            key_type=self.types[0],
            value_type=self.types[1],
        )
        store = TypedKVTensors(spec, blocks, torch.float32, torch.device("cpu"))
        store.blocks.fill_(255)
        return store.layers[0]

    def slots(self, index: int, start: int, stop: int) -> list[int]:
        table, size = self.tables[index], self.block_tokens
        return [table[place // size] * size + place % size for place in range(start, stop)]

    def attend(self, ops: NativeOps, runs: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        """One step with tokens start .. stop of each sequence: index, start, stop."""
        packed = torch.cat([self.packed[index][start:stop] for index, start, stop in runs])
        slots = [slot for run in runs for slot in self.slots(*run)]
        still = torch.zeros(len(packed), 1, self.heads.head_dim // 2, 2)
        still[..., 0] = 1
        places = TokenPlaces(still, torch.tensor(slots))
        place = NativePlaceQkv(ops.tape, interleaved=False)
        place(packed, self.heads, None, places, self.cache)
        starts = [0]
        for _, start, stop in runs:
            starts.append(starts[-1] + stop - start)
        batch = AttentionBatch(
            tuple(starts),
            tuple(stop for _, _, stop in runs),
            tuple(self.tables[index] for index, _, _ in runs),
            self.block_tokens,
        )
        attention = NativeAttention(ops.tape, self.heads)
        out = attention.prepare(batch)(packed, self.cache)
        return list(torch.split(out, [stop - start for _, start, stop in runs]))

    def expected(self, index: int) -> torch.Tensor:
        """float64 [length, H * D]."""
        heads, dim = self.heads, self.heads.head_dim
        split = self.packed[index].double().view(self.lengths[index], -1, dim)
        queries, rest = split[:, : heads.num_heads], split[:, heads.num_heads :]
        keys, values = (
            self.stored(part, side).repeat_interleave(heads.group, dim=1)
            for side, part in enumerate(rest.chunk(2, dim=1))
        )
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(dim)
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)

    def stored(self, numbers: torch.Tensor, side: int) -> torch.Tensor:
        """Keys or values as they come back out of the cache, float64."""
        if self.types is None:
            return numbers
        kind = self.types[side]
        plain = {"f16": torch.float16, "bf16": torch.bfloat16}.get(kind, torch.float32)
        data, scales = encode(kind, numbers.float(), plain)
        return decode(kind, data, scales, torch.float32).double()
