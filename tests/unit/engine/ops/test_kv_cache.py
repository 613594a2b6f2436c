"""Typed caches: what is stored, and what attention reads of it, against the definition."""

from __future__ import annotations

import pytest
import torch

from luce.engine.kv_tensors import TypedKVTensors
from luce.engine.ops.kv_cache import TypedCache
from luce.engine.ops.ref.kv_cache import decode, encode, read_blocks
from luce.engine.ops.ref.pointwise import store_kv
from luce.kv.spec import KVSpec, KVType, head_bytes

CPU = torch.device("cpu")
# Of the norm, for normal numbers: a step of 2 * 2.1 sigma / 254 or / 15, over sqrt(12).
BOUND: dict[KVType, float] = {"f32": 0, "f16": 3e-4, "bf16": 3e-3, "q8_0": 7e-3, "q4_0": 0.11}
KINDS = sorted(BOUND)


def spec(key: KVType, value: KVType, dim: int = 96) -> KVSpec:
    return KVSpec("full", 2, 16, 3, dim, 4, key_type=key, value_type=value)


def layer(key: KVType, value: KVType, blocks: int = 4) -> TypedCache:
    cache = TypedKVTensors(spec(key, value), blocks, torch.float32, CPU).layers[0]
    assert isinstance(cache, TypedCache)
    return cache


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_bounded(kind: KVType) -> None:
    cache = layer(kind, kind)
    numbers = noise(64, 3, 96)
    data, scales = encode(kind, numbers, cache.keys.data.dtype)
    found = decode(kind, data, scales, torch.float32)
    assert ((found - numbers).norm() / numbers.norm()).item() <= BOUND[kind]


def test_q8_0_by_hand() -> None:
    numbers = torch.zeros(32)
    numbers[:3] = torch.tensor([127.0, -63.6, 0.4])
    data, scales = encode("q8_0", numbers, torch.int8)
    assert scales is not None
    assert scales.tolist() == [1.0]
    assert data[:4].tolist() == [127, -64, 0, 0]


def test_q4_0_by_hand() -> None:
    numbers = torch.zeros(64)
    numbers[0], numbers[16], numbers[1], numbers[63] = -8.0, 7.0, 3.4, 4.0
    data, scales = encode("q4_0", numbers, torch.uint8)
    assert scales is not None
    # The number of largest magnitude is -8 steps: a positive one makes the scale negative.
    assert scales.tolist() == [1.0, -0.5]
    assert data[0].item() == 0 | 15 << 4
    assert data[1].item() == 11 | 8 << 4
    assert data[31].item() == 8 | 0 << 4
    assert decode("q4_0", data, scales, torch.float32)[[0, 1, 16, 63]].tolist() == [-8, 3, 7, 4]


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_zeros_and_tiny_numbers_stay_finite(kind: KVType) -> None:
    numbers = torch.cat([torch.zeros(32), torch.full((32,), 1e-9), torch.full((32,), -3.0)])
    dtype = torch.int8 if kind == "q8_0" else torch.uint8
    found = decode(kind, *encode(kind, numbers, dtype), torch.float32)
    assert found[:64].abs().max().item() < 1e-6
    torch.testing.assert_close(found[64:], numbers[64:], rtol=1e-3, atol=0)


@pytest.mark.parametrize("value", KINDS)
@pytest.mark.parametrize("key", KINDS)
def test_slots_keep_what_was_stored(key: KVType, value: KVType) -> None:
    cache = layer(key, value)
    kv, slots = noise(5, 2 * 3 * 96), torch.tensor([16, 17, 35, 63, 40])
    store_kv(kv, cache, slots)
    read = read_blocks(cache, torch.tensor([1, 2, 3]), torch.float32)
    assert read.shape == (3, 16, 2, 3, 96)
    found = read.flatten(0, 1)[slots - 16].unbind(1)
    for kind, mine, theirs in zip((key, value), found, kv.view(5, 2, 3, 96).unbind(1), strict=True):
        assert ((mine - theirs).norm() / theirs.norm()).item() <= BOUND[kind]
    others = torch.ones(48, dtype=torch.bool)
    others[slots - 16] = False
    kept = read.flatten(0, 1)[others]
    assert not kept.any(), "other slots were written"


@pytest.mark.parametrize("key", KINDS)
def test_memory_is_what_the_spec_says(key: KVType) -> None:
    kv = TypedKVTensors(spec(key, "q8_0"), 7, torch.float32, CPU)
    assert kv.nbytes == 7 * spec(key, "q8_0").bytes_per_block
    assert len(kv.layers) == 2
    first, second = kv.layers
    assert isinstance(first, TypedCache)
    assert isinstance(second, TypedCache)
    parts = (first.keys, first.values, second.keys, second.values)
    tensors = [t for part in parts for t in (part.data, part.scales) if t is not None]
    assert sum(t.numel() * t.itemsize for t in tensors) == kv.nbytes
    for index, tensor in enumerate(tensors):
        tensor.fill_(index + 1)
    assert [set(t.flatten().tolist()) for t in tensors] == [{i + 1} for i in range(len(tensors))]


def test_bytes_of_a_head() -> None:
    assert [head_bytes(kind, 128) for kind in ("f32", "f16", "bf16", "q8_0", "q4_0")] == [
        512, 256, 256, 136, 72,
    ]  # fmt: skip
    assert spec("q8_0", "q4_0", 128).bytes_per_token == 2 * 3 * (136 + 72)
    assert KVSpec("full", 2, 16, 3, 80, 2).bytes_per_token == 2 * 3 * 160 * 2
