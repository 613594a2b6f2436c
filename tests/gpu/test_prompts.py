"""The attention of prompts on a GPU of its generation, against float32 and cut in other places."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from luce.engine.device import kernel_refusal
from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.cuda.prefill_attention import (
    TILINGS,
    few_queries_attention,
    prefill_attention,
)
from luce.engine.ops.cuda.prefill_choice import _by_definition
from luce.engine.ops.triton.paged_attention_prefill import PrefillAttention

TOLERANCE = 6e-3
Lens = list[tuple[int, int]]


class Case:
    """Sequences of (queries, context) behind two decode rows; slots nobody owns are poison."""

    def __init__(self, heads: HeadShape, page: int, lens: Lens) -> None:
        generator = torch.Generator("cuda").manual_seed(len(lens))
        self.heads, self.page, self.lens = heads, page, lens
        counts = [-(-context // page) for _, context in lens]
        ids = torch.randperm(sum(counts), generator=generator, device="cuda") + 1
        shape = (1 + sum(counts), 2, heads.num_kv_heads, page, heads.head_dim)
        store = torch.randn(shape, generator=generator, device="cuda").bfloat16()
        store[0] = float("nan")
        self.cache = store.permute(0, 3, 1, 2, 4)
        self.tables = torch.zeros(len(lens), max(counts) + 1, dtype=torch.int32, device="cuda")
        for row, (part, (_, context)) in enumerate(
            zip(torch.split(ids, counts), lens, strict=True)
        ):
            self.tables[row, : len(part)] = part
            if context % page:
                self.cache[part[-1], context % page :] = float("nan")
        tokens = 2 + sum(count for count, _ in lens)
        size = (tokens, heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim)
        self.qkv = torch.randn(size, generator=generator, device="cuda").bfloat16()

    def run(self, cut: int = 0, attend: PrefillAttention = prefill_attention) -> torch.Tensor:
        """[T, H * D]; the first `cut` queries of each sequence are left out."""
        counts = [count - cut for count, _ in self.lens]
        starts = torch.tensor([0, 1, 2, *(2 + torch.tensor(counts).cumsum(0)).tolist()])
        first, kept = 2, [self.qkv[:2]]
        for count, _ in self.lens:
            kept.append(self.qkv[first + cut : first + count])
            first += count
        qkv = torch.cat(kept)
        rows = torch.arange(-2, len(counts), dtype=torch.int32).clamp(0)
        lens = torch.tensor([1, 1, *(context for _, context in self.lens)], dtype=torch.int32)
        tensors = AttentionTensors(
            self.tables, rows.cuda(), lens.cuda(), starts.int().cuda(), 2, max(counts)
        )
        out = torch.full_like(qkv[:, : self.heads.num_heads].flatten(1), float("nan"))
        attend(qkv, self.cache, tensors, self.heads, out)
        assert out[:2].isnan().all(), "decode rows are not its business"
        return out[2:]

    def expected(self) -> torch.Tensor:
        out, first = [], 2
        for row, (count, context) in enumerate(self.lens):
            blocks = self.tables[row, : -(-context // self.page)].long()
            both = self.cache[blocks].flatten(0, 1)[:context].float()
            queries = self.qkv[first : first + count, : self.heads.num_heads].float()
            out.append(_by_definition(queries, both, self.heads))
            first += count
        return torch.cat(out)


CASES: dict[str, Lens] = {
    "one token": [(1, 1)],
    "prompt": [(333, 333)],
    "continued": [(130, 1000), (700, 2500), (3, 3)],
    "many": [(5 + 9 * i, 20 + 40 * i) for i in range(40)],
}


@pytest.fixture(autouse=True)
def _on_hopper() -> None:
    reason = kernel_refusal(is_hopper=True)
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("dim", TILINGS)
@pytest.mark.parametrize("name", CASES)
def test_against_the_definition(dim: int, name: str) -> None:
    page = 32 if name == "many" else 16
    case = Case(HeadShape(6, 2, dim), page, CASES[name])
    found, expected = case.run(), case.expected()
    assert ((found.float() - expected).norm() / expected.norm()).item() < TOLERANCE
    assert torch.equal(case.run(), found)


@pytest.mark.parametrize("heads", [6, 20, 40])
@pytest.mark.parametrize("dim", TILINGS)
@pytest.mark.parametrize("lens", [[(1, 1)], [(64, 4096)], [(5, 20), (3, 333), (30, 1001)]])
def test_few_queries(dim: int, heads: int, lens: Lens) -> None:
    case = Case(HeadShape(heads, 2, dim), 16, lens)
    found, expected = case.run(attend=few_queries_attention), case.expected()
    assert ((found.float() - expected).norm() / expected.norm()).item() < TOLERANCE
    assert torch.equal(case.run(attend=few_queries_attention), found)
    alone = Case(HeadShape(heads, 2, dim), 16, lens)
    alone.lens, alone.qkv = lens[:1], case.qkv[: 2 + lens[0][0]]
    rows = alone.run(attend=few_queries_attention)
    assert torch.equal(rows, found[: lens[0][0]]), "a sequence depends on the others"


@pytest.mark.parametrize("dim", TILINGS)
def test_a_token_does_not_depend_on_the_cut(dim: int) -> None:
    case = Case(HeadShape(6, 2, dim), 16, [(300, 300), (200, 900)])
    whole, rest = case.run(), case.run(cut=77)
    assert torch.equal(rest, torch.cat((whole[77:300], whole[377:])))
