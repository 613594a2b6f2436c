"""Heads with gates against the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from luce.engine.ops.attention import AttentionBatch, AttentionTensors, HeadShape
from luce.engine.ops.cuda import decode_few
from luce.engine.ops.cuda.decode_few import FewGeometry
from luce.engine.ops.cuda.decode_few_choice import _Trial
from luce.engine.ops.linear import Linear
from luce.engine.ops.qkv import HeadNorms, Placing, TokenPlaces
from luce.engine.ops.ref.gated_heads import ReferenceGatedHeads
from luce.engine.ops.ref.linear import PlainLinear
from luce.engine.ops.triton import gated_heads, probe
from luce.engine.ops.triton.gated_heads import DeviceGatedHeads
from luce.engine.ops.triton.paged_attention import AttentionKernels, TritonAttention
from luce.engine.ops.triton.place_qkv import FusedPlaceQkv
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.ops.triton.quant_tilings import DEFAULT_TILINGS
from luce.engine.quant_planes import repack
from luce.testing.quant_blocks import random_blocks
from support.cuda_host import COMPILER, STORES_HEADER, HostDevice


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("heads", [HeadShape(6, 2, 20), HeadShape(4, 1, 64), HeadShape(1, 1, 8)])
def test_split_and_gate(device: torch.device, dtype: torch.dtype, heads: HeadShape) -> None:
    generator = torch.Generator().manual_seed(0)
    width = 2 * (heads.num_heads + heads.num_kv_heads) * heads.head_dim
    projected = torch.randn(5, width, generator=generator).to(device, dtype)
    ours, plain = DeviceGatedHeads(), ReferenceGatedHeads()
    packed = ours.split(projected, heads)
    assert torch.equal(packed, plain.split(projected, heads))
    mixed = torch.randn(5, heads.num_heads * heads.head_dim, generator=generator)
    mixed = mixed.to(device, dtype)
    expected = plain.gate(mixed.double(), projected.double(), heads)
    found = ours.gate(mixed, projected, heads)
    bound = 1e-6 if dtype == torch.float32 else 2e-3
    assert ((found.double() - expected).norm() / expected.norm()).item() < bound


@pytest.mark.parametrize("takes_gates", [True, False])
def test_attention_with_gates_of_its_own(device: torch.device, takes_gates: bool) -> None:
    """Each token is gated once, by the kernel that takes gates or behind it."""
    heads, tokens, singles = HeadShape(4, 1, 16), 7, 3
    projected = torch.randn(tokens, 2 * (4 + 1) * 16, device=device)
    mixed = torch.randn(tokens, 4 * 16, device=device)
    plain, seen = ReferenceGatedHeads(), []

    def decode(*args: torch.Tensor) -> None:
        tensors, out = args[2], args[-1]
        seen.append(tensors.gates is not None)  # type: ignore[attr-defined]
        out[:singles] = mixed[:singles]
        if seen[-1]:
            out[:singles] = plain.gate(mixed, projected, heads)[:singles]

    def prefill(*args: torch.Tensor) -> None:
        args[-1][singles:] = mixed[singles:]

    numbers = torch.arange(singles + 2, dtype=torch.int32)
    tensors = AttentionTensors(numbers, numbers[:-1], numbers, numbers, singles, tokens - singles)
    kernels = AttentionKernels(prefill, decode, takes_gates)  # type: ignore[arg-type]
    attention = TritonAttention(heads, singles, 16, device, kernels)
    step = attention.prepare(AttentionBatch((), (), (), 16, tensors))
    packed, cache = torch.empty(tokens, 6, 16, device=device), torch.empty(1, device=device)
    found = DeviceGatedHeads().attend(step, packed, cache, projected, heads)
    torch.testing.assert_close(found, plain.gate(mixed, projected, heads))
    assert seen == [takes_gates]


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("heads", [HeadShape(6, 2, 20), HeadShape(4, 1, 64)])
def test_split_and_place(
    device: torch.device, heads: HeadShape, interleaved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one kernel the same bits as in two; gates stay where they are, nothing else is read."""
    monkeypatch.setattr(probe, "INTERPRETED", False)
    monkeypatch.setattr(probe, "_known", {})

    def noise(*shape: int, seed: int) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)

    tokens, dim, kv_heads = 5, heads.head_dim, heads.num_kv_heads
    projected = noise(tokens, 2 * (heads.num_heads + kv_heads) * dim, seed=1)
    norms = HeadNorms(noise(dim, seed=2), noise(dim, seed=3), 1e-6)
    places = TokenPlaces(noise(tokens, 1, 4, 2, seed=4), torch.tensor([3, 9, 0, 7, 4]).to(device))
    caches = [torch.full((3, 4, 2, kv_heads, dim), 7.0, device=device) for _ in range(2)]
    ours, place_qkv = DeviceGatedHeads(), FusedPlaceQkv(interleaved)
    given = projected.clone()
    found = ours.place(given, Placing(heads, norms, places, caches[0]), place_qkv)
    expected = ours.split(projected, heads)
    place_qkv(expected, heads, norms, places, caches[1])
    queries = heads.num_heads * dim
    assert torch.equal(found[:, :queries], expected[:, :queries])
    assert torch.equal(caches[0], caches[1])
    assert torch.equal(given, projected)
    assert list(probe._known.values()) == [None]
    for key in probe._known:
        probe._known[key] = "refused"
    stepwise = ours.place(given, Placing(heads, norms, places, caches[0]), place_qkv)
    assert torch.equal(stepwise, expected)


@pytest.mark.parametrize("kind", ["Q4_K", "IQ4_NL", None])
def test_few_tokens_go_through_one_kernel(
    device: torch.device, kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By words where the product behind takes them."""
    if COMPILER is None or device.type != "cpu":
        pytest.skip("the host stands in for the kernel")
    host = HostDevice(STORES_HEADER)
    monkeypatch.setattr(decode_few, "compiled_kernel", host.compiled_kernel)
    monkeypatch.setattr(gated_heads, "few_refusal", lambda *_: None)
    decode_few._compiled.cache_clear()
    trial = _Trial.made(FewGeometry(HeadShape(2, 1, 256), 64, 16, 1e-6), device)
    hidden = torch.randn(len(trial.projected), 8, generator=torch.Generator().manual_seed(1))
    output: Linear = PlainLinear(
        (torch.randn(8, 512, generator=torch.Generator().manual_seed(3)) * 0.05).bfloat16(), None
    )
    if kind is not None:
        blocks = random_blocks(kind, 8, 512, torch.Generator().manual_seed(2))
        planes = repack(kind, blocks, 8, 512)
        output = TritonQuantLinear([planes], None)
        assert output.order_of_words(3) is (kind == "IQ4_NL")
        large = replace(DEFAULT_TILINGS, wide_rows=7)
        assert TritonQuantLinear([planes], None, large).order_of_words(3) is None
    attention = TritonAttention(trial.placing.heads, 4, 1024, device)
    step = attention.prepare(AttentionBatch((), (), (), 16, trial.tensors))
    placing = replace(trial.placing, cache=trial.placing.cache.clone())  # type: ignore[union-attr]
    both = FusedPlaceQkv(interleaved=False), step
    found = DeviceGatedHeads().add_attention(hidden.clone(), trial.projected, placing, both, output)
    expected = output.add_to(hidden.clone(), trial.expected(is_gated=True).bfloat16())
    assert ((found - expected).norm() / expected.norm()).item() < 1e-2
    assert ((expected - hidden).norm() / hidden.norm()).item() > 0.1
    decode_few._compiled.cache_clear()
