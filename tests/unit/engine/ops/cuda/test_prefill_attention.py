"""What the attention of prompts is compiled and launched with, and who it is left to."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.candidates import OpRequest
from luce.engine.ops.cuda import prefill_attention as kernel
from luce.engine.ops.cuda import prefill_choice as choice
from luce.engine.ops.cuda.sources import kernel_text
from luce.engine.ops.triton.paged_attention_prefill import prefill_attention
from luce.engine.ops.triton.probe import TrialError

HEADS = HeadShape(6, 2, 128)
REQUEST = OpRequest(torch.device("cpu"), torch.bfloat16, HEADS, interleaved_rope=False)
HOPPER_SHARED = 227 << 10


@pytest.mark.parametrize("dim", kernel.TILINGS)
def test_a_tiling_fits_the_processor(dim: int) -> None:
    tiling = kernel.TILINGS[dim]
    assert kernel.shared_bytes(dim, tiling) <= HOPPER_SHARED
    assert 4 * 8 * tiling.stages <= kernel._BARRIER_BYTES
    # A thread's sums, scores, weights and queries leave some of its 240 registers.
    queries = dim // 4 if dim <= 128 else 0
    assert dim // 2 + tiling.tokens // 2 + tiling.tokens // 4 + queries <= 192


def test_constants() -> None:
    found = kernel.constants(HEADS, 16, kernel.PrefillTiling(64, 3, takes_turns=True))
    scale = struct.unpack("f", struct.pack("i", found.pop("SCALE")))[0]
    assert scale == pytest.approx(1.4426950408889634 / 128**0.5)
    assert found == {"DIM": 128, "TILE": 64, "PAGE": 16, "GROUP": 3, "STAGES": 3, "TURNS": 1}
    text = kernel_text(kernel._PARTS, found)
    assert all(f" {name} " in text.split("//")[0] for name in found)


@pytest.mark.parametrize("dim", kernel.FEW_TILINGS)
def test_few_queries_fit_the_processor(dim: int) -> None:
    tiling = kernel.FEW_TILINGS[dim]
    assert kernel.shared_bytes(dim, tiling, kernel.FEW) <= HOPPER_SHARED
    # What two groups leave lies where tiles of the context did.
    sums = 2 * 4 * kernel.FEW * (dim + 8 + 4)
    assert sums <= 2 * tiling.stages * tiling.tokens * dim * 2


@pytest.mark.parametrize(("heads", "blocks"), [(16, 8), (24, 4), (32, 4), (64, 2)])
def test_a_cluster_is_as_large_as_the_processor_allows(heads: int, blocks: int) -> None:
    assert kernel.cluster_of(HeadShape(heads, 2, 256)) == blocks


@pytest.mark.parametrize("tokens", [64, 65])
def test_the_kernel_goes_by_the_tokens_of_prompts(
    monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    taken: list[str] = []
    for name in ("few_queries_attention", "prefill_attention"):
        monkeypatch.setattr(kernel, name, lambda *_, name=name: taken.append(name))
    monkeypatch.setattr(choice, "kernel_refusal", lambda **_: None)
    monkeypatch.setattr(choice, "launch_refusal", lambda facts, attempt: None)
    numbers = torch.zeros(4, dtype=torch.int32)
    tensors = AttentionTensors(numbers[None], numbers, numbers, numbers, 2, tokens)
    qkv = torch.zeros(2 + tokens, 10, 128)
    choice.prefill_for(REQUEST)(qkv, qkv, tensors, HEADS, qkv)
    assert taken == ["few_queries_attention" if tokens == 64 else "prefill_attention"]


def test_few_queries_are_left_to_the_usual_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "kernel_refusal", lambda **_: None)
    monkeypatch.setattr(
        choice,
        "launch_refusal",
        lambda facts, attempt: "no clusters" if facts[0] == "prefill_few" else None,
    )
    assert choice.prefill_for(REQUEST) is kernel.prefill_attention


@pytest.mark.parametrize(
    ("dim", "page", "word"),
    [(128, 16, None), (256, 64, None), (64, 8, None), (96, 16, "heads"), (256, 128, "blocks"),
     (128, 4, "blocks"), (128, 24, "blocks")],
)  # fmt: skip
def test_refusals(dim: int, page: int, word: str | None) -> None:
    reason = kernel.refusal(HeadShape(4, 2, dim), page)
    assert reason is None if word is None else word in str(reason)


def test_there_are_blocks_of_threads_for_all_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[tuple[tuple[int, ...], list[object]]] = []
    monkeypatch.setattr(kernel, "tensor_map", lambda tensor, box: (tensor.data_ptr(), box))
    monkeypatch.setattr(
        kernel, "_compiled", lambda *_: lambda grid, block, args: launches.append((grid, args))
    )
    cache = torch.zeros(4, 2, 2, 16, 128, dtype=torch.bfloat16).permute(0, 3, 1, 2, 4)
    qkv, out = torch.zeros(260, 10, 128), torch.zeros(260, 768)
    numbers = torch.zeros(6, dtype=torch.int32)
    tensors = AttentionTensors(torch.zeros(3, 4).int(), numbers[:4], numbers, numbers, 2, 200)
    kernel.prefill_attention(qkv, cache, tensors, HEADS, out)
    ((grid, args),) = launches
    # 258 tokens of 2 sequences are at most 4 tiles: 129 + 129, or 2 + 256.
    assert grid == (6, 4, 1)
    assert args[0] == (cache.data_ptr(), (1, 16, 1, 64))
    assert args[1] == (cache.data_ptr() + 2 * 2 * 16 * 128, (1, 16, 1, 64))
    assert args[-5:] == [2, 2, 4, 1280, 768]


@pytest.mark.parametrize(
    "request_",
    [replace(REQUEST, dtype=torch.float32), replace(REQUEST, has_typed_cache=True), REQUEST],
    ids=["float32", "typed", "no such GPU"],
)
def test_the_rest_is_left_to_triton(request_: OpRequest) -> None:
    assert choice.prefill_for(request_) is prefill_attention


@pytest.mark.parametrize("is_right", [True, False])
def test_a_kernel_is_tried(is_right: bool) -> None:
    def attention(
        qkv: torch.Tensor,
        cache: torch.Tensor,
        tensors: AttentionTensors,
        heads: HeadShape,
        out: torch.Tensor,
    ) -> None:
        context = cache[tensors.block_tables[0].long()].flatten(0, 1)[:300].double()
        queries = qkv[:, : heads.num_heads].double()
        for head in range(heads.num_heads):
            keys, values = context[:, :, head // heads.group].unbind(1)
            scores = queries[:, head] @ keys.T / 128**0.5
            scores += torch.full_like(scores, -torch.inf).triu(250 + is_right)
            out[:, head * 128 : head * 128 + 128] = scores.softmax(-1) @ values

    tried: Callable[[], None] = lambda: choice._try(REQUEST, attention, 50)  # noqa: E731
    if is_right:
        tried()
    else:
        with pytest.raises(TrialError, match="off"):
            tried()
