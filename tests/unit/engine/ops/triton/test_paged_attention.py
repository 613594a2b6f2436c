"""The attention kernels against float64, and that a row's result is its own."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import pytest
import torch

from luce.engine.ops.attention import AttentionBatch, HeadShape
from luce.engine.ops.triton import paged_attention_decode
from luce.engine.ops.triton.paged_attention import TritonAttention, tensors_of

MAX_CTX = 700
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
WIDE = HeadShape(num_heads=8, num_kv_heads=2, head_dim=64)
ODD = HeadShape(num_heads=6, num_kv_heads=2, head_dim=40)
ALONE = HeadShape(num_heads=2, num_kv_heads=2, head_dim=16)


@dataclass
class Case:
    heads: HeadShape
    batch: AttentionBatch
    qkv: torch.Tensor
    cache: torch.Tensor


def make_case(
    heads: HeadShape,
    lens: list[tuple[int, int]],
    dtype: torch.dtype,
    device: torch.device,
    block_tokens: int = 16,
) -> Case:
    """Sequences of (queries, context) in shuffled blocks; every slot nobody owns is poison."""
    generator = torch.Generator().manual_seed(len(lens))
    counts = [-(-context // block_tokens) for _, context in lens]
    ids = list(range(1, 1 + sum(counts)))
    random.Random(sum(counts)).shuffle(ids)
    shape = (1 + sum(counts), block_tokens, 2, heads.num_kv_heads, heads.head_dim)
    cache = torch.full(shape, math.nan, dtype=torch.float32)
    flat = cache.view(-1, *shape[2:])
    tables, starts = [], [0]
    for (queries, context), count in zip(lens, counts, strict=True):
        table, ids = tuple(ids[:count]), ids[count:]
        for position in range(context):
            slot = table[position // block_tokens] * block_tokens + position % block_tokens
            flat[slot] = torch.randn(*shape[2:], generator=generator)
        tables.append(table)
        starts.append(starts[-1] + queries)
    width = heads.num_heads + 2 * heads.num_kv_heads
    qkv = torch.randn(starts[-1], width, heads.head_dim, generator=generator)
    contexts = tuple(context for _, context in lens)
    batch = AttentionBatch(tuple(starts), contexts, tuple(tables), block_tokens)
    # As the engine has it on a GPU: head by head inside a block.
    strided = cache.to(device, dtype).permute(0, 2, 3, 1, 4).contiguous().permute(0, 3, 1, 2, 4)
    return Case(heads, batch, qkv.to(device, dtype), strided)


def by_definition(case: Case) -> torch.Tensor:
    """Float64 on the values as they are rounded: [T, H * D]."""
    heads, batch = case.heads, case.batch
    cache, qkv = case.cache.double().cpu().flatten(0, 1), case.qkv.double().cpu()
    out = torch.zeros(qkv.shape[0], heads.num_heads, heads.head_dim, dtype=torch.float64)
    for sequence in range(batch.num_sequences):
        start, stop = batch.query_starts[sequence : sequence + 2]
        length, blocks = batch.context_lens[sequence], torch.tensor(batch.block_tables[sequence])
        slots = (blocks[:, None] * batch.block_tokens + torch.arange(batch.block_tokens)).flatten()
        keys, values = cache[slots[:length]].repeat_interleave(heads.group, 2).unbind(1)
        scores = torch.einsum("qhd,khd->hqk", qkv[start:stop, : heads.num_heads], keys)
        hidden = torch.arange(length) > torch.arange(length - stop + start, length)[:, None]
        weights = (scores / math.sqrt(heads.head_dim)).masked_fill(hidden, -math.inf).softmax(-1)
        out[start:stop] = torch.einsum("hqk,khd->qhd", weights, values)
    return out.flatten(1)


def run(case: Case, lanes: int = 16) -> torch.Tensor:
    attention = TritonAttention(case.heads, lanes, MAX_CTX, case.qkv.device)
    return attention.prepare(case.batch)(case.qkv, case.cache)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double().cpu() - expected).norm() / expected.norm()).item()


CASES = {
    "one token": [(1, 1)],
    "decode": [(1, 255), (1, 256), (1, 257), (1, 3), (1, 600)],
    "prompt": [(37, 37)],
    "continued": [(5, 300), (130, 260), (3, 3)],
    "mixed": [(1, 64), (1, 65), (40, 70), (1, 9), (129, 129)],
}


@pytest.mark.parametrize("heads", [WIDE, ODD, ALONE], ids=["wide", "odd", "alone"])
@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(device: torch.device, heads: HeadShape, name: str) -> None:
    case = make_case(heads, CASES[name], torch.float32, device)
    assert error(run(case), by_definition(case)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["decode", "mixed"])
def test_narrow_types(device: torch.device, name: str, dtype: torch.dtype) -> None:
    case = make_case(WIDE, CASES[name], dtype, device, block_tokens=32)
    found = run(case)
    assert found.dtype == dtype
    assert error(found, by_definition(case)) < TOLERANCE[dtype]


def test_a_row_does_not_depend_on_its_neighbours(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(WIDE, [(1, 600), (1, 20), (1, 300)], torch.float32, device)
    together = run(case)
    for row in range(3):
        batch = AttentionBatch(
            (0, 1),
            case.batch.context_lens[row : row + 1],
            case.batch.block_tables[row : row + 1],
            16,
        )
        single = Case(WIDE, batch, case.qkv[row : row + 1], case.cache)
        assert torch.equal(run(single)[0], together[row])
    monkeypatch.setattr(paged_attention_decode, "_WANTED_PROGRAMS", 1)
    assert torch.equal(run(case), together), "how many programs share a row must not matter"


def test_the_order_in_which_rows_begin_does_not_matter(device: torch.device) -> None:
    case = make_case(WIDE, [(1, 20), (1, 600), (1, 300)], torch.float32, device)
    tensors = tensors_of(case.batch, device)
    lanes = torch.tensor([1, 2, 0], dtype=torch.int32, device=device)
    order = torch.stack([lanes, tensors.rows[lanes], tensors.context_lens[lanes]])
    batch = AttentionBatch((), (), (), 16, replace(tensors, order=order))
    found = TritonAttention(WIDE, 3, MAX_CTX, device).prepare(batch)(case.qkv, case.cache)
    assert torch.equal(found, run(case))


def test_a_chunk_does_not_depend_on_the_cut(device: torch.device) -> None:
    case = make_case(WIDE, [(200, 200)], torch.float32, device)
    whole = run(case)
    batch = AttentionBatch((0, 70), (200,), case.batch.block_tables, 16)
    rest = Case(WIDE, batch, case.qkv[130:].contiguous(), case.cache)
    assert torch.equal(run(rest), whole[130:])


def test_tables_on_the_device_are_read_by_row(device: torch.device) -> None:
    case = make_case(WIDE, [(1, 40), (1, 20)], torch.float32, device)
    tensors = tensors_of(case.batch, device)
    tables = tensors.block_tables.new_zeros(5, tensors.block_tables.shape[1])
    tables[3], tables[1] = tensors.block_tables[0], tensors.block_tables[1]
    moved = replace(tensors, block_tables=tables, rows=tensors.rows.new_tensor([3, 1]))
    batch = AttentionBatch((), (), (), 16, moved)
    found = TritonAttention(WIDE, 2, MAX_CTX, device).prepare(batch)(case.qkv, case.cache)
    assert torch.equal(found, run(case))
