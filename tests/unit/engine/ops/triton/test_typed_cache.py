"""Kernels over typed caches: they write what the reference writes and read what it reads."""

from __future__ import annotations

import pytest
import torch

from luce.engine.kv_tensors import TypedKVTensors
from luce.engine.ops.attention import AttentionBatch, HeadShape
from luce.engine.ops.kv_cache import TypedCache
from luce.engine.ops.qkv import HeadNorms, Placing, TokenPlaces, UnnormedRows
from luce.engine.ops.ref import kv_cache as ref
from luce.engine.ops.ref.attention import ReferenceAttention
from luce.engine.ops.triton.cache_parts import store_typed
from luce.engine.ops.triton.paged_attention import TritonAttention
from luce.engine.ops.triton.place_qkv import FusedPlaceQkv
from luce.kv.spec import KVSpec, KVType

WIDE = HeadShape(num_heads=4, num_kv_heads=2, head_dim=64)
ODD = HeadShape(num_heads=6, num_kv_heads=3, head_dim=96)
PAIRS: list[tuple[KVType, KVType]] = [
    ("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "f16"), ("bf16", "q4_0"),
]  # fmt: skip
# Of the output's norm against float64 over the numbers before they were stored.
BOUND = {("q8_0", "q8_0"): 0.01, ("q4_0", "q4_0"): 0.16, ("q8_0", "f16"): 0.01}


def empty(heads: HeadShape, kinds: tuple[KVType, KVType], device: torch.device) -> TypedCache:
    key, value = kinds
    spec = KVSpec("full", 1, 16, heads.num_kv_heads, heads.head_dim, 4, key, value)
    cache = TypedKVTensors(spec, 24, torch.float32, device).layers[0]
    assert isinstance(cache, TypedCache)
    # Poison: what nobody wrote must not be read.
    for part in (cache.keys, cache.values):
        (part.data if part.scales is None else part.scales).fill_(float("nan"))
    return cache


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bits(cache: TypedCache) -> list[torch.Tensor]:
    parts = (cache.keys, cache.values)
    each = [t for part in parts for t in (part.data, part.scales) if t is not None]
    return [t.contiguous().view(torch.uint8).cpu() for t in each]


@pytest.mark.parametrize("heads", [WIDE, ODD], ids=["wide", "odd"])
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_stored_as_the_reference_does(
    device: torch.device, heads: HeadShape, kinds: tuple[KVType, KVType]
) -> None:
    num_heads, dim = heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim
    packed = noise(5, num_heads * dim).to(device)
    packed[2, -40:] = 0
    slots = torch.tensor([17, 16, 300, 47, 95], device=device)
    found, expected = empty(heads, kinds, device), empty(heads, kinds, device)
    store_typed(packed, heads.num_heads, found, slots)
    ref.store(packed[:, heads.num_heads * dim :].contiguous(), expected, slots)
    if "bf16" not in kinds:  # which the interpreter rounds otherwise
        for mine, theirs in zip(bits(found), bits(expected), strict=True):
            assert (mine != theirs).float().mean().item() < 2e-4, "codes differ beyond rounding"
    blocks = torch.tensor([1, 2, 5, 18], device=device)
    values = [ref.read_blocks(each, blocks, torch.float32) for each in (found, expected)]
    torch.testing.assert_close(*values, rtol=0.15, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("is_unnormed", [False, True])
@pytest.mark.parametrize("has_norms", [False, True])
def test_norm_and_rotation_come_before(
    device: torch.device, has_norms: bool, is_unnormed: bool
) -> None:
    dim, half = WIDE.head_dim, WIDE.head_dim // 2
    width = WIDE.num_heads + 2 * WIDE.num_kv_heads
    packed = noise(3, width * dim)
    angle = noise(3, 1, half, seed=2)
    places = TokenPlaces(
        torch.stack([angle.cos(), angle.sin()], -1).to(device),
        torch.tensor([16, 33, 50], device=device),
    )
    norms = None
    if has_norms:
        norms = HeadNorms(*(noise(dim, seed=s).to(device) for s in (3, 4)), 1e-6)
    turned, typed = packed.to(device).clone(), packed.to(device).clone()
    plain = torch.zeros(24, 16, 2, WIDE.num_kv_heads, dim, device=device)
    cache = empty(WIDE, ("f32", "f32"), device)
    rows = UnnormedRows(noise(3, 40, seed=5).to(device), 1e-6)
    for given, target in ((turned, plain), (typed, cache)):
        if is_unnormed:
            place = Placing(WIDE, norms, places, target)
            FusedPlaceQkv(False).place_unnormed(given, place, rows)
        else:
            FusedPlaceQkv(False)(given, WIDE, norms, places, target)
    queries = WIDE.num_heads * dim
    assert torch.equal(turned[:, :queries], typed[:, :queries])
    read = ref.read_blocks(cache, torch.arange(24, device=device), torch.float32)
    slots = places.slot_mapping
    assert torch.equal(read.flatten(0, 1)[slots], plain.flatten(0, 1)[slots])


CASES = {"decode": [(1, 255), (1, 3), (1, 40)], "mixed": [(1, 64), (40, 70), (1, 9), (33, 33)]}


@pytest.mark.parametrize("heads", [WIDE, ODD], ids=["wide", "odd"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_attention_reads_what_is_stored(
    device: torch.device, kinds: tuple[KVType, KVType], name: str, heads: HeadShape
) -> None:
    cache = empty(heads, kinds, device)
    starts, tables, contexts, block = [0], [], [], 1
    kept: list[torch.Tensor] = []
    for queries, context in CASES[name]:
        count = -(-context // 16)
        tables.append(tuple(range(block, block + count)))
        kv = noise(context, 2 * heads.num_kv_heads * heads.head_dim, seed=block).to(device)
        ref.store(kv, cache, torch.arange(context, device=device) + block * 16)
        kept.append(kv)
        block += count
        contexts.append(context)
        starts.append(starts[-1] + queries)
    batch = AttentionBatch(tuple(starts), tuple(contexts), tuple(tables), 16)
    width = heads.num_heads + 2 * heads.num_kv_heads
    qkv = noise(starts[-1], width, heads.head_dim, seed=9).to(device)
    found = TritonAttention(heads, 8, 300, device).prepare(batch)(qkv, cache)
    expected = ReferenceAttention(heads).prepare(batch)(qkv, cache)
    assert ((found - expected).norm() / expected.norm()).item() < 1e-5
    bound = BOUND.get(kinds)
    if bound is not None:
        plain = torch.zeros(block, 16, 2, heads.num_kv_heads, heads.head_dim, device=device)
        for table, kv in zip(tables, kept, strict=True):
            at = table[0] * 16
            shape = (len(kv), *plain.shape[2:])
            plain.flatten(0, 1)[at : at + len(kv)] = kv.view(shape)
        exact = ReferenceAttention(heads).prepare(batch)(qkv.double(), plain.double())
        assert ((found.double() - exact).norm() / exact.norm()).item() < bound
