"""One token of a gated DeltaNet layer in CUDA C++, its own text on the host, by the recurrence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.cuda import delta_words
from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState, StateBatch
from luce.engine.ops.ref.gated_delta import gated_delta
from support.cuda_host import _HEADER, COMPILER, HostDevice

SHAPE = DeltaShape(2, 4, 128, 64, 4, is_tiled=False)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(Path(_HEADER).with_name("delta_words_emulation.hpp"))

    def compiled(
        name: str, files: Sequence[str], constants: Mapping[str, int], launch: KernelLaunch
    ) -> DeviceKernel:
        own = [each for each in files if each not in delta_words.PRIMITIVES]
        return device.compiled_kernel(name, own, constants, launch)

    monkeypatch.setattr(delta_words, "compiled_kernel", compiled)
    delta_words._compiled.cache_clear()
    yield device
    delta_words._compiled.cache_clear()


def noise(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weights_of(shape: DeltaShape) -> DeltaWeights:
    heads = shape.num_value_heads
    return DeltaWeights(
        conv=noise(shape.channels, shape.conv_width, seed=1),
        decay=-noise(heads, seed=2, dtype=torch.float32).exp(),
        dt_bias=noise(heads, seed=3, dtype=torch.float32),
        norm=1 + 0.2 * noise(shape.value_head_dim, seed=4),
        eps=1e-6,
    )


def state_of(shape: DeltaShape) -> LayerState:
    """Five slots."""
    recurrent = noise(5, shape.recurrent_elements, seed=6, dtype=torch.float32) * 0.1
    return LayerState(noise(5, shape.conv_elements, seed=5), recurrent)


def columns_of(
    words: torch.Tensor, squares: torch.Tensor, shape: DeltaShape, order: bool
) -> torch.Tensor:
    """What words stand for, divided by the heads' root mean squares: [T, Hv * Dv]."""
    tokens, _, groups = words.shape
    halves = torch.stack([words[:, :16] << 16 >> 16, words[:, :16] >> 16])
    # Of column 4a + 2b + c of eight: words are (b, c) or (c, a), halves a or b.
    parts = halves.view(2, tokens, 4, 2, 2, groups)
    parts = parts.permute(1, 5, 2, 4, 0, 3) if order else parts.permute(1, 5, 2, 0, 3, 4)
    codes = parts.reshape(tokens, groups, 2, 16).float()
    scales = words[:, 16:18].view(torch.float32).transpose(1, 2)[..., None]
    sums = words[:, 18:20].transpose(1, 2)
    assert torch.equal(codes.sum(3).int(), sums)
    heads = (codes * scales).view(tokens, shape.num_value_heads, shape.value_head_dim)
    mean = squares.sum(2, keepdim=True) / shape.value_head_dim
    return (heads * (mean + 1e-6).rsqrt()).flatten(1)


@pytest.mark.parametrize(("is_tiled", "order"), [(False, False), (True, True)])
def test_a_token(host: HostDevice, is_tiled: bool, order: bool) -> None:
    shape = replace(SHAPE, is_tiled=is_tiled)
    weights, mine, theirs = weights_of(shape), state_of(shape), state_of(shape)
    projected, slots = noise(2, shape.projected_size, seed=7), (3, 1)
    index = torch.tensor([*slots, 0], dtype=torch.int32)
    tensors = AttentionTensors(index[None], index[:2], index[:2], index, 2, 0)
    words = torch.zeros(2, 20, shape.value_size // 32, dtype=torch.int32)
    squares = torch.zeros(2, shape.num_value_heads, shape.value_head_dim // 16)
    arrivals = torch.zeros(2 * shape.num_key_heads, dtype=torch.int32)
    assert delta_words.refusal(shape, projected, mine) is None
    results = words, squares
    for turn in range(2):
        host.backwards = bool(turn)
        layer = shape, weights, mine
        delta_words.advance(projected, layer, tensors, results, arrivals, order=order)
        expected = gated_delta(projected, shape, weights, theirs, StateBatch(slots, (0, 1, 2)))
        found = columns_of(*results, shape, order)
        assert float((found - expected.float()).norm() / expected.float().norm()) < 1e-2
        assert torch.equal(mine.conv, theirs.conv)
        torch.testing.assert_close(mine.recurrent, theirs.recurrent, rtol=2e-2, atol=2e-2)
        assert not arrivals.any(), "counters are left as they were"


def test_what_it_is_not_made_for() -> None:
    projected, state = noise(1, SHAPE.projected_size, seed=7), state_of(SHAPE)

    assert delta_words.refusal(SHAPE, projected, state) is None
    for other in (
        replace(SHAPE, key_head_dim=64),
        replace(SHAPE, value_head_dim=48),
        replace(SHAPE, conv_width=1),
    ):
        assert delta_words.refusal(other, projected, state) is not None
    assert delta_words.refusal(SHAPE, projected.float(), state) is not None
    shifted = LayerState(state.conv, state.recurrent.flatten()[2:].view(1, -1))
    assert delta_words.refusal(SHAPE, projected, shifted) is not None
