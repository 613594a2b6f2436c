"""Native attention and cache writes against the definition, at every level."""

from __future__ import annotations

import math

import pytest
import torch

from luce.engine.ops.attention import AttentionBatch, HeadShape
from luce.engine.ops.cpu.native import (
    NativeAttention,
    NativeOps,
    NativePlaceQkv,
    cache_refusal,
)
from luce.engine.ops.qkv import HeadNorms, TokenPlaces
from luce.engine.ops.ref import pointwise

TOLERANCE = 2e-5


class Sequences:
    """Random queries, keys and values of some sequences, of which all but the last are cached."""

    def __init__(self, heads: HeadShape, lengths: list[int], block_tokens: int) -> None:
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
        shape = (sum(needed) + 1, block_tokens, 2, heads.num_kv_heads, heads.head_dim)
        # What nobody wrote must not matter.
        self.cache = torch.full(shape, float("nan"))

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
        return list(out.split([stop - start for _, start, stop in runs]))

    def expected(self, index: int) -> torch.Tensor:
        """float64 [length, H * D]."""
        heads, dim = self.heads, self.heads.head_dim
        split = self.packed[index].double().view(self.lengths[index], -1, dim)
        queries, rest = split[:, : heads.num_heads], split[:, heads.num_heads :]
        keys, values = (part.repeat_interleave(heads.group, dim=1) for part in rest.chunk(2, dim=1))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(dim)
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)


@pytest.mark.parametrize(
    "heads", [HeadShape(9, 3, 64), HeadShape(4, 4, 32), HeadShape(2, 1, 96), HeadShape(40, 1, 128)]
)
@pytest.mark.parametrize("block_tokens", [16, 64])
def test_against_the_definition(ops: NativeOps, heads: HeadShape, block_tokens: int) -> None:
    sequences = Sequences(heads, [1, 16, 75, 200], block_tokens)
    found = sequences.attend(ops, [(0, 0, 1), (1, 0, 16), (2, 0, 75), (3, 0, 200)])
    for index, values in enumerate(found):
        torch.testing.assert_close(
            values.double(), sequences.expected(index), rtol=0, atol=TOLERANCE
        )


def test_chunks_and_neighbours_change_nothing(ops: NativeOps) -> None:
    """A prompt at once, in chunks, token by token, alone or beside others: the same bits."""
    heads, length = HeadShape(6, 2, 32), 150
    whole = Sequences(heads, [length, 40], 16)
    expected = whole.attend(ops, [(0, 0, length)])[0]
    chunked = Sequences(heads, [length, 40], 16)
    rows = [
        chunked.attend(ops, [(1, 0, 40), (0, start, min(start + 37, length))])[1]
        for start in range(0, length, 37)
    ]
    assert torch.equal(torch.cat(rows), expected)
    single = Sequences(heads, [length, 40], 16)
    single.attend(ops, [(0, 0, length - 5)])
    for place in range(length - 5, length):
        found = single.attend(ops, [(0, place, place + 1), (1, 0, 40)])[0]
        assert torch.equal(found[0], expected[place])


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rotated", [64, 32])
@pytest.mark.parametrize("normed", [True, False])
def test_norm_and_rotation(ops: NativeOps, interleaved: bool, rotated: int, normed: bool) -> None:
    heads, tokens = HeadShape(3, 1, 64), 10
    generator = torch.Generator().manual_seed(8)
    packed = torch.randn(tokens, 5 * 64, generator=generator)
    angles = torch.randn(tokens, 1, rotated // 2, generator=generator)
    rotary = torch.stack([angles.cos(), angles.sin()], dim=-1)
    norms = None
    split = packed.clone().view(tokens, 5, 64)
    if normed:
        query, key = torch.rand(2, 64, generator=generator).unbind(0)
        norms = HeadNorms(query, key, 1e-6)
        split[:, :3] = pointwise.rms_norm(split[:, :3], query, 1e-6)
        split[:, 3:4] = pointwise.rms_norm(split[:, 3:4], key, 1e-6)
    rotate = pointwise.rotate_interleaved if interleaved else pointwise.rotate_half
    rotate(split[:, :4, :rotated], rotary)
    cache = torch.zeros(3, 16, 2, 1, 64)
    slots = torch.tensor([31, 16, 17, 47, 46, 33, 18, 20, 25, 32])
    NativePlaceQkv(ops.tape, interleaved)(packed, heads, norms, TokenPlaces(rotary, slots), cache)
    torch.testing.assert_close(packed, split.flatten(1), rtol=0, atol=2e-6)
    blocks = cache.view(3, 2, 64 * 16)
    for token, slot in enumerate(slots.tolist()):
        block, offset = blocks[slot // 16], slot % 16
        assert torch.equal(block[0].view(64, 16)[:, offset], packed[token, 3 * 64 : 4 * 64])
        assert torch.equal(block[1].view(16, 64)[offset], packed[token, 4 * 64 :])


def test_values_that_are_no_numbers_stay_in_their_sequence(ops: NativeOps) -> None:
    heads = HeadShape(2, 1, 32)
    sequences = Sequences(heads, [20, 20], 16)
    sequences.packed[0][7] = float("nan")
    found = sequences.attend(ops, [(0, 0, 20), (1, 0, 20)])
    assert bool(found[0][7:].isnan().all())
    torch.testing.assert_close(found[1].double(), sequences.expected(1), rtol=0, atol=TOLERANCE)


def test_geometry_it_is_not_made_for() -> None:
    assert cache_refusal(HeadShape(9, 3, 64), 16) is None
    assert "head sizes" in str(cache_refusal(HeadShape(9, 3, 80), 16))
    assert "blocks of" in str(cache_refusal(HeadShape(9, 3, 64), 8))
    assert "query heads" in str(cache_refusal(HeadShape(65, 1, 64), 16))
