"""Single tokens of a gated DeltaNet layer in CUDA C++, its text on the host, by the recurrence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch, KernelLimits
from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.cuda import delta_rows
from luce.engine.ops.cuda.delta_rows import Cut, RowsKernel
from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState, StateBatch
from luce.engine.ops.ref.gated_delta import gated_delta
from support.cuda_host import COMPILER, RING_HEADER, HostDevice

SHAPE = DeltaShape(2, 4, 128, 128, 4, is_tiled=False)


@pytest.fixture
def delta_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU of three multiprocessors."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(Path(RING_HEADER).with_name("delta_rows_emulation.hpp"))

    def compiled(
        name: str, files: Sequence[str], constants: Mapping[str, int], launch: KernelLaunch
    ) -> DeviceKernel:
        own = [each for each in files if each not in delta_rows.PRIMITIVES]
        return device.compiled_kernel(name, own, constants, launch)

    monkeypatch.setattr(delta_rows, "compiled_kernel", compiled)
    limits = KernelLimits(3, 227 << 10, 228 << 10)
    monkeypatch.setattr(delta_rows, "kernel_limits", lambda _: limits)
    delta_rows._compiled.cache_clear()
    yield device
    delta_rows._compiled.cache_clear()


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


@pytest.mark.parametrize(
    ("is_tiled", "cut", "blocks"),
    [(False, None, None), (True, Cut(16, 1, 2), None), (False, Cut(), 1)],
)
def test_tokens(
    delta_host: HostDevice, is_tiled: bool, cut: Cut | None, blocks: int | None
) -> None:
    shape = replace(SHAPE, is_tiled=is_tiled)
    weights, mine, theirs = weights_of(shape), state_of(shape), state_of(shape)
    projected, slots = noise(4, shape.projected_size, seed=7), (3, 1, 4)
    assert delta_rows.refusal(shape, projected, weights, mine) is None
    index = torch.tensor([*slots, 0], dtype=torch.int32)
    tensors = AttentionTensors(index[None], index[:3], index[:3], index, 3, 0)
    out = torch.zeros(4, shape.value_size, dtype=torch.bfloat16)
    arrivals = torch.zeros(3 * shape.num_key_heads, dtype=torch.int32)
    advance = RowsKernel(arrivals, cut, blocks)
    for turn in range(2):
        delta_host.backwards = bool(turn)
        advance(projected, shape, weights, mine, tensors, out)
        batch = StateBatch(slots, (0, 1, 2, 3))
        expected = gated_delta(projected[:3], shape, weights, theirs, batch)
        apart = (out[:3] - expected).float().norm() / expected.float().norm()
        assert float(apart) < 1e-2
        assert not out[3].any(), "of a token that is not such a sequence's"
        assert torch.equal(mine.conv, theirs.conv)
        torch.testing.assert_close(mine.recurrent, theirs.recurrent, rtol=2e-2, atol=2e-2)
        assert not arrivals.any(), "counters are left as they were"


def test_few_states_are_asked_for_one_ahead() -> None:
    assert Cut.of(396, 132) == Cut(8, 1, 1)
    assert Cut.of(397, 132) == Cut(8, 2, 1)


def test_what_it_is_not_made_for() -> None:
    state, projected = state_of(SHAPE), noise(1, SHAPE.projected_size, seed=7)
    weights = weights_of(SHAPE)
    assert delta_rows.refusal(SHAPE, projected.float(), weights, state) is not None
    for other in ({"key_head_dim": 64}, {"value_head_dim": 64}, {"conv_width": 3}):
        assert delta_rows.refusal(replace(SHAPE, **other), projected, weights, state) is not None
    odd = noise(2, SHAPE.projected_size + 1, seed=8)
    assert delta_rows.refusal(SHAPE, odd, weights, state) is not None
