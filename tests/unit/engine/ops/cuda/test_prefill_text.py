"""The text of the attention of prompts, on the host: against float64, and cut in other places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.cuda import prefill_attention as kernel
from luce.engine.ops.cuda.prefill_attention import PrefillTiling
from support.cuda_host import EmulationError, HostDevice, described

SMALL = PrefillTiling(32, 2, takes_turns=True)
FEW = PrefillTiling(64, 3, takes_turns=False)
HEADS = HeadShape(2, 1, 64)
TOLERANCE = 4e-3
"""Weights and results, being bfloat16, make 3e-3."""


def tensor_map(tensor: torch.Tensor, box: tuple[int, ...]) -> torch.Tensor:
    """The description of a cache's keys or values."""
    block, slot, head = (2 * stride for stride in tensor.stride()[:3])
    return described(tensor, [0, head, slot, block, box[1], len(tensor)])


@pytest.fixture
def host(hopper_host: Callable[..., HostDevice]) -> HostDevice:
    """The host in place of a GPU; files that only a GPU can take are left out."""
    return hopper_host(kernel, tensor_map, 2, ("_compiled", "_compiled_few"))


class Case:
    """Sequences of (queries, context) in shuffled blocks; slots nobody owns are not numbers."""

    def __init__(self, heads: HeadShape, lens: list[tuple[int, int]]) -> None:
        generator = torch.Generator().manual_seed(len(lens))
        self.heads, self.lens = heads, lens
        counts = [-(-context // 16) for _, context in lens]
        ids = torch.randperm(sum(counts), generator=generator) + 1
        shape = (1 + sum(counts), 2, heads.num_kv_heads, 16, heads.head_dim)
        store = torch.randn(shape, generator=generator).bfloat16()
        store[0] = float("nan")
        self.cache = store.permute(0, 3, 1, 2, 4)
        self.tables = torch.zeros(len(lens), max(counts) + 1, dtype=torch.int32)
        for row, (part, (_, context)) in enumerate(
            zip(torch.split(ids, counts), lens, strict=True)
        ):
            self.tables[row, : len(part)] = part
            if context % 16:
                self.cache[part[-1], context % 16 :] = float("nan")
        tokens = sum(count for count, _ in lens)
        size = (tokens, heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim)
        self.qkv = torch.randn(size, generator=generator).bfloat16()

    def run(self, tiling: PrefillTiling, cut: int = 0, cluster: int = 0) -> torch.Tensor:
        """[T, H * D]; the first `cut` queries of the only sequence are left out.

        By clusters of so many blocks of threads, if it is said, else by one block.
        """
        qkv = self.qkv[cut:].clone()
        starts = torch.tensor([0, *(count - cut for count, _ in self.lens)]).cumsum(0).int()
        tensors = AttentionTensors(
            self.tables,
            torch.arange(len(self.lens)).int(),
            torch.tensor([context for _, context in self.lens]).int(),
            starts,
            0,
            max(count for count, _ in self.lens) - cut,
        )
        out = torch.full_like(qkv[:, : self.heads.num_heads].flatten(1), float("nan"))
        if cluster:
            way = tiling, cluster
            kernel.few_queries_attention(qkv, self.cache, tensors, self.heads, out, way)
        else:
            kernel.prefill_attention(qkv, self.cache, tensors, self.heads, out, tiling)
        return out

    def expected(self) -> torch.Tensor:
        out, first = [], 0
        for row, (count, context) in enumerate(self.lens):
            blocks = self.tables[row, : -(-context // 16)].long()
            both = self.cache[blocks].flatten(0, 1)[:context].double()
            keys, values = both.repeat_interleave(self.heads.group, 2).unbind(1)
            queries = self.qkv[first : first + count, : self.heads.num_heads].double()
            scores = torch.einsum("qhd,khd->hqk", queries, keys) / self.heads.head_dim**0.5
            scores += torch.full_like(scores, -torch.inf).triu(context - count + 1)
            out.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1))
            first += count
        return torch.cat(out)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(
    ("heads", "tiling", "lens", "backwards"),
    [
        (HEADS, SMALL, [(150, 150), (3, 70), (1, 1)], False),
        (HEADS, replace(SMALL, stages=3, takes_turns=False), [(20, 200)], True),
        (HeadShape(1, 1, 128), PrefillTiling(64, 2, takes_turns=True), [(70, 140)], True),
    ],
    ids=["prompts", "continued", "other sizes"],
)
def test_against_the_definition(
    host: HostDevice,
    heads: HeadShape,
    tiling: PrefillTiling,
    lens: list[tuple[int, int]],
    backwards: bool,
) -> None:
    host.backwards = backwards
    case = Case(heads, lens)
    assert error(case.run(tiling), case.expected()) < TOLERANCE


def test_a_token_does_not_depend_on_the_cut(host: HostDevice) -> None:
    case = Case(HEADS, [(150, 170)])
    assert torch.equal(case.run(SMALL, cut=37), case.run(SMALL)[37:])


@pytest.mark.parametrize(
    ("heads", "tiling", "lens", "cluster"),
    [
        (HEADS, FEW, [(30, 300), (3, 33), (1, 1), (20, 60)], 2),
        (HeadShape(1, 1, 128), PrefillTiling(64, 3, takes_turns=False), [(64, 333)], 4),
    ],
    ids=["several", "other sizes"],
)
def test_few_queries(
    host: HostDevice,
    heads: HeadShape,
    tiling: PrefillTiling,
    lens: list[tuple[int, int]],
    cluster: int,
) -> None:
    case = Case(heads, lens)
    found = case.run(tiling, cluster=cluster)
    assert error(found, case.expected()) < TOLERANCE
    host.backwards = True
    assert torch.equal(case.run(tiling, cluster=cluster), found)


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("wait_for_groups<1>();", ""),
        ("const int there = run.length", "const int there = TILE + run.length"),
        ("if (TURNS && group && tiles > 1) join_threads(2, 256);", ""),
    ],
    ids=["scores unwaited", "nothing cleared", "no first turn"],
)
def test_what_is_left_out_shows(host: HostDevice, written: str, instead: str) -> None:
    def edit(text: str) -> str:
        assert text.count(written) == 1
        return text.replace(written, instead)

    host.edit = edit
    case = Case(HEADS, [(20, 70)])
    try:
        found = case.run(SMALL)
    except EmulationError:
        return
    assert not error(found, case.expected()) < TOLERANCE
