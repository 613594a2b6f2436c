"""Native attention and cache writes against the definition, at every level."""

from __future__ import annotations

import pytest
import torch
from sequences import Sequences

from luce.engine.ops.attention import AttentionBatch, HeadShape
from luce.engine.ops.cpu.native import (
    NativeAttention,
    NativeOps,
    NativePlaceQkv,
    cache_refusal,
)
from luce.engine.ops.qkv import HeadNorms, TokenPlaces
from luce.engine.ops.ref import pointwise

TOLERANCE = 5e-6


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


@pytest.mark.parametrize("length", [150, 520])
def test_chunks_and_neighbours_change_nothing(ops: NativeOps, length: int) -> None:
    """A prompt at once, in chunks, token by token, alone or beside others: the same bits."""
    heads = HeadShape(6, 2, 32)
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


@pytest.mark.parametrize(
    "heads", [HeadShape(6, 2, 32), HeadShape(5, 5, 64), HeadShape(16, 1, 96), HeadShape(8, 2, 256)]
)
def test_few_rows_and_many_get_the_same_bits(ops: NativeOps, heads: HeadShape) -> None:
    """Rows that are lanes and rows whose keys are; with spans that are shared, and without."""
    length = 340
    expected = Sequences(heads, [length, 30], 16).attend(ops, [(0, 0, length)])[0]
    parts = Sequences(heads, [length, 30], 16)
    parts.attend(ops, [(0, 0, 250), (1, 0, 30)])
    start = 250
    for count in (1, 2, 3, 4, 5, 6, 7, 13, 16, 33):
        found = parts.attend(ops, [(0, start, start + count)])[0]
        assert torch.equal(found, expected[start : start + count])
        start += count
    assert start == length


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


@pytest.mark.parametrize("lengths", [[600], [1100, 300], [257, 256, 255, 512]])
def test_who_shares_the_work_changes_nothing(ops: NativeOps, lengths: list[int]) -> None:
    """Threads that share a row's keys, one that has them all, and a prompt: the same bits."""
    heads = HeadShape(6, 2, 32)
    prompts = Sequences(heads, lengths, 16)
    expected = prompts.attend(ops, [(index, 0, length) for index, length in enumerate(lengths)])
    for index in range(len(lengths)):
        torch.testing.assert_close(
            expected[index].double(), prompts.expected(index), rtol=0, atol=TOLERANCE
        )
    last = [(index, length - 1, length) for index, length in enumerate(lengths)]
    # With so many sequences beside them nobody shares.
    beside = [(len(lengths) + index, 2, 3) for index in range(16)]
    crowd = Sequences(heads, [*lengths, *[3] * 16], 16)
    crowd.attend(ops, [(index, 0, length) for index, length in enumerate(crowd.lengths)])
    unshared = crowd.attend(ops, [*last, *beside])
    for threads in (1, 2, 3):
        ops.tape.library.use_threads(threads)
        found = prompts.attend(ops, last)
        for index, row in enumerate(found):
            assert torch.equal(row[0], expected[index][-1])
            assert torch.equal(row[0], unshared[index][0])


def test_the_last_unit_of_many_is_shared(ops: NativeOps) -> None:
    """The others are done by whoever takes them; the end is not waited for."""
    batch = AttentionBatch((0, 600), (600,), (tuple(range(38)),), 16)
    NativeAttention(ops.tape, HeadShape(6, 2, 32)).prepare(batch)
    step = ops.tape.step
    assert step.num_units == 29
    assert step.num_pieces == 28 + 3
    assert step.partial_rows == 64


@pytest.mark.parametrize(("rows", "is_shared"), [(1, True), (16, False), (40, False)])
def test_what_is_shared_stays_small(ops: NativeOps, rows: int, is_shared: bool) -> None:
    """The parts of 16 rows over 131,072 tokens would take 136 MB."""
    length, heads = 131_072, HeadShape(32, 8, 128)
    batch = AttentionBatch((0, rows), (length,), (tuple(range(length // 64)),), 64)
    attention = NativeAttention(ops.tape, heads)
    attention.prepare(batch)
    step = ops.tape.step
    assert step.num_units == -(-rows // 16)
    assert step.num_pieces == (length // 256 if is_shared else step.num_units)
    assert attention._partials.nbytes < 32 << 20


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
    assert "head sizes" in str(cache_refusal(HeadShape(9, 3, 288), 16))
    assert "blocks of" in str(cache_refusal(HeadShape(9, 3, 64), 8))
    assert "query heads" in str(cache_refusal(HeadShape(65, 1, 64), 16))
