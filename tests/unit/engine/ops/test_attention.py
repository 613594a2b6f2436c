"""Paged attention: the reference against float64, the CPU's against the reference."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
import torch

from luce.engine.ops.attention import AttentionBatch, HeadShape, PagedAttention
from luce.engine.ops.cpu import attention as module
from luce.engine.ops.cpu.attention import GroupedAttention, Scratch, Shared, _grouped
from luce.engine.ops.ref.attention import ReferenceAttention

BLOCK_TOKENS = 4
HEADS = HeadShape(num_heads=6, num_kv_heads=2, head_dim=8)


@dataclass
class Case:
    batch: AttentionBatch
    qkv: torch.Tensor
    cache: torch.Tensor


def make_case(lens: list[tuple[int, int]], *, scatter: bool = True, seed: int = 0) -> Case:
    """Sequences of (queries, context) with random blocks; stale slots hold NaN."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-context // BLOCK_TOKENS) for _, context in lens]
    ids = list(range(1, 1 + sum(counts)))
    if scatter:
        random.Random(seed).shuffle(ids)
    tables, starts = [], [0]
    for (queries, _), count in zip(lens, counts, strict=True):
        tables.append(tuple(ids[:count]))
        ids = ids[count:]
        starts.append(starts[-1] + queries)
    # What lies behind a context or in the null block must not count, whatever it is.
    shape = (1 + sum(counts), BLOCK_TOKENS, 2, HEADS.num_kv_heads, HEADS.head_dim)
    cache = torch.full(shape, torch.nan)
    width = HEADS.num_heads + 2 * HEADS.num_kv_heads
    qkv = torch.randn(starts[-1], width, HEADS.head_dim, generator=generator)
    flat = cache.view(-1, 2, HEADS.num_kv_heads, HEADS.head_dim)
    for (queries, context), table, start in zip(lens, tables, starts, strict=False):
        kv = torch.randn(context, 2, HEADS.num_kv_heads, HEADS.head_dim, generator=generator)
        own = qkv[start : start + queries, HEADS.num_heads :]
        kv[context - queries :] = own.view(queries, 2, HEADS.num_kv_heads, HEADS.head_dim)
        for position in range(context):
            block = table[position // BLOCK_TOKENS]
            flat[block * BLOCK_TOKENS + position % BLOCK_TOKENS] = kv[position]
    contexts = tuple(context for _, context in lens)
    return Case(AttentionBatch(tuple(starts), contexts, tuple(tables), BLOCK_TOKENS), qkv, cache)


def by_definition(case: Case) -> torch.Tensor:
    """Float64, one query and head at a time."""
    batch, flat = case.batch, case.cache.double().flatten(0, 1)
    out = torch.zeros(case.qkv.shape[0], HEADS.num_heads, HEADS.head_dim, dtype=torch.float64)
    for sequence in range(batch.num_sequences):
        queries = batch.query_len(sequence)
        for index in range(queries):
            token = batch.query_starts[sequence] + index
            seen = batch.context_lens[sequence] - queries + index + 1
            slots = [
                batch.block_tables[sequence][position // BLOCK_TOKENS] * BLOCK_TOKENS
                + position % BLOCK_TOKENS
                for position in range(seen)
            ]
            for head in range(HEADS.num_heads):
                kv = flat[slots][:, :, head // HEADS.group]
                scores = kv[:, 0] @ case.qkv[token, head].double() / math.sqrt(HEADS.head_dim)
                out[token, head] = torch.softmax(scores, 0) @ kv[:, 1]
    return out.flatten(1)


CASES = {
    "one token": [(1, 1)],
    "one decode": [(1, 9)],
    "equal decodes": [(1, 8), (1, 8), (1, 8)],
    "ragged decodes": [(1, 1), (1, 4), (1, 5), (1, 11)],
    "long beside short": [(1, 3), (1, 90), (1, 2), (1, 41), (1, 88)],
    "whole prompt": [(13, 13)],
    "continued chunk": [(6, 17)],
    "chunk on a border": [(4, 8)],
    "mixed": [(1, 7), (1, 60), (5, 5), (1, 3), (9, 30), (2, 2)],
}
IMPLEMENTATIONS: list[PagedAttention] = [
    ReferenceAttention(HEADS),
    GroupedAttention(HEADS, torch.float32),
]


@pytest.mark.parametrize("scatter", [True, False])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("attention", IMPLEMENTATIONS, ids=["ref", "cpu"])
def test_against_the_definition(attention: PagedAttention, name: str, scatter: bool) -> None:
    case = make_case(CASES[name], scatter=scatter)
    found = attention.prepare(case.batch)(case.qkv, case.cache)
    torch.testing.assert_close(found.double(), by_definition(case), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["ragged decodes", "mixed"])
def test_narrow_types(name: str, dtype: torch.dtype) -> None:
    case = make_case(CASES[name])
    case.cache[case.cache == 50.0] = 1.0
    expected = by_definition(case)
    qkv, cache = case.qkv.to(dtype), case.cache.to(dtype)
    for attention in (ReferenceAttention(HEADS), GroupedAttention(HEADS, dtype)):
        found = attention.prepare(case.batch)(qkv, cache)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.05)


def test_one_preparation_serves_all_layers() -> None:
    first, second = make_case(CASES["mixed"]), make_case(CASES["mixed"], seed=0)
    second.qkv.neg_()
    second.cache.neg_()
    attend = GroupedAttention(HEADS, torch.float32).prepare(first.batch)
    torch.testing.assert_close(
        attend(first.qkv, first.cache).double(), by_definition(first), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(
        attend(second.qkv, second.cache).double(), by_definition(second), rtol=1e-4, atol=1e-4
    )


def test_nobody_is_padded_to_more_than_twice_its_blocks() -> None:
    generator = random.Random(4)
    lens = [(1, generator.choice([1, 5, 30, 31, 64, 200, 3000])) for _ in range(30)]
    starts = tuple(range(31))
    tables = tuple(tuple(range(-(-context // BLOCK_TOKENS))) for _, context in lens)
    batch = AttentionBatch(starts, tuple(context for _, context in lens), tables, BLOCK_TOKENS)
    groups = _grouped(batch, list(range(30)), max_blocks=100_000)
    assert sorted(sequence for group in groups for sequence in group) == list(range(30))
    for group in groups:
        counts = [batch.num_blocks(sequence) for sequence in group]
        assert max(counts) <= 2 * min(counts)
    assert len(groups) <= 8


def test_a_group_gathers_no_more_than_the_limit() -> None:
    lens = [40, 9, 40, 8, 200, 40, 39]
    tables = tuple(tuple(range(-(-context // BLOCK_TOKENS))) for context in lens)
    batch = AttentionBatch(tuple(range(8)), tuple(lens), tables, BLOCK_TOKENS)
    # 50 blocks alone are over the limit; 10 fit twice; 3 and 2 go together.
    assert _grouped(batch, list(range(7)), max_blocks=25) == [[4], [0, 2], [5, 6], [1, 3]]
    assert _grouped(batch, [], max_blocks=25) == []


def test_small_groups_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_GATHER_BYTES", 1)
    case = make_case(CASES["ragged decodes"])
    step = GroupedAttention(HEADS, torch.float32).prepare(case.batch)
    assert len(step.groups) == 4  # type: ignore[attr-defined]
    found = step(case.qkv, case.cache)
    torch.testing.assert_close(found.double(), by_definition(case), rtol=1e-4, atol=1e-4)


def test_scratch_is_kept_and_grows() -> None:
    cache = torch.zeros(20, 4, 2, 1, 8)
    scratch = Scratch()
    small = scratch.blocks(3, cache)
    assert small.shape == (3, 4, 2, 1, 8)
    assert scratch.blocks(2, cache).data_ptr() == small.data_ptr()
    large = scratch.blocks(7, cache)
    assert scratch.blocks(3, cache).data_ptr() == large.data_ptr()


def test_neighbouring_blocks_are_read_in_place() -> None:
    """A run of blocks is no gather: a long context costs no copy."""
    shared = Shared(HEADS, Scratch(), torch.float32)
    case = make_case([(1, 40)], scatter=False)
    step = GroupedAttention(HEADS, torch.float32).prepare(case.batch)
    blocks = step.groups[0].blocks  # type: ignore[attr-defined]
    assert blocks.read(case.cache, shared).data_ptr() == case.cache[1].data_ptr()
    scattered = make_case([(1, 40)])
    step = GroupedAttention(HEADS, torch.float32).prepare(scattered.batch)
    blocks = step.groups[0].blocks  # type: ignore[attr-defined]
    assert torch.equal(
        blocks.read(scattered.cache, shared),
        scattered.cache[list(scattered.batch.block_tables[0])],
    )
