"""Native caches in other types than float32: what is written and what is attended to."""

from __future__ import annotations

import pytest
import torch
from sequences import Sequences

from luce.engine.ops.attention import HeadShape
from luce.engine.ops.cpu.native import NativeOps
from luce.engine.ops.kv_cache import CachePart, TypedCache
from luce.engine.ops.ref.kv_cache import encode
from luce.kv.spec import KV_GROUP, KVType

# Both sides read the same stored numbers and differ by sums in float32.
TOLERANCE = 2e-5
TYPES: list[tuple[KVType, KVType]] = [
    ("f16", "f16"),
    ("bf16", "bf16"),
    ("q8_0", "q8_0"),
    ("q4_0", "q4_0"),
    ("q8_0", "q4_0"),
    ("f32", "q8_0"),
    ("bf16", "f32"),
]


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize(("heads", "block_tokens"), [((9, 3, 64), 16), ((4, 2, 32), 64)])
def test_against_the_definition(
    ops: NativeOps, types: tuple[KVType, KVType], heads: tuple[int, int, int], block_tokens: int
) -> None:
    sequences = Sequences(HeadShape(*heads), [1, 75, 300], block_tokens, types)
    found = sequences.attend(ops, [(0, 0, 1), (1, 0, 75), (2, 0, 300)])
    for index, values in enumerate(found):
        torch.testing.assert_close(
            values.double(), sequences.expected(index), rtol=0, atol=TOLERANCE
        )


@pytest.mark.parametrize("types", TYPES)
def test_chunks_and_neighbours_change_nothing(ops: NativeOps, types: tuple[KVType, KVType]) -> None:
    heads, length = HeadShape(6, 2, 32), 300
    expected = Sequences(heads, [length], 16, types).attend(ops, [(0, 0, length)])[0]
    chunked = Sequences(heads, [length], 16, types)
    for start, stop in ((0, 1), (1, 60), (60, 299), (299, 300)):
        found = chunked.attend(ops, [(0, start, stop)])[0]
        assert torch.equal(found, expected[start:stop])


def _keys(part: CachePart, slot: int, block_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A token's keys [K, W] and their scales [K, D/32], which lie number by number."""
    block, offset = slot // block_tokens, slot % block_tokens
    data = part.data[block].transpose(0, 1).reshape(part.data.shape[2], -1, block_tokens)
    if part.scales is None:
        return data[..., offset], torch.empty(0)
    scales = part.scales[block].transpose(0, 1).reshape(part.data.shape[2], -1, block_tokens)
    return data[..., offset], scales[..., offset]


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0"])
def test_codes_are_those_of_the_reference(ops: NativeOps, kind: KVType) -> None:
    heads, length = HeadShape(3, 3, 64), 40
    sequences = Sequences(heads, [length], 16, (kind, kind))
    packed = sequences.packed[0].view(length, 9, 64)
    packed[3] = 0
    packed[5, :, :KV_GROUP] *= 1e-9
    packed[6, :, 7] = 3e4
    packed[7, :, 8] = -1e-3
    sequences.attend(ops, [(0, 0, length)])
    cache = sequences.cache
    assert isinstance(cache, TypedCache)
    for place in range(length):
        slot = sequences.slots(0, place, place + 1)[0]
        data, scales = _keys(cache.keys, slot, 16)
        codes, factors = encode(kind, packed[place, 3:6], cache.keys.data.dtype)
        assert torch.equal(data, codes)
        value_codes, value_factors = encode(kind, packed[place, 6:9], cache.values.data.dtype)
        assert torch.equal(cache.values.data[slot // 16, slot % 16], value_codes)
        if factors is not None:
            assert value_factors is not None
            assert cache.values.scales is not None
            assert torch.equal(scales, factors)
            assert torch.equal(cache.values.scales[slot // 16, slot % 16], value_factors)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0"])
def test_values_that_are_no_numbers_stay_in_their_sequence(ops: NativeOps, kind: KVType) -> None:
    sequences = Sequences(HeadShape(2, 1, 32), [20, 20], 16, (kind, kind))
    sequences.packed[0][7] = float("nan")
    found = sequences.attend(ops, [(0, 0, 20), (1, 0, 20)])
    assert bool(found[0][7:].isnan().all())
    torch.testing.assert_close(found[1].double(), sequences.expected(1), rtol=0, atol=TOLERANCE)
