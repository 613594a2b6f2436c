"""One token of linear attention and the product behind it, in CUDA C++ on a GPU."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState, StateBatch
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.triton import gated_delta, gated_delta_step
from luce.engine.ops.triton.norm_quantise import norm_and_quantise
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.quant_planes import repack
from luce.testing.quant_blocks import random_blocks

DEVICE = torch.device("cuda")
HIDDEN = 2048


def noise(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)


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
    recurrent = noise(5, shape.recurrent_elements, seed=6, dtype=torch.float32) * 0.1
    return LayerState(noise(5, shape.conv_elements, seed=5), recurrent)


def tensors_of(slots: list[int]) -> AttentionTensors:
    index = torch.tensor([*slots, 0], dtype=torch.int32, device=DEVICE)
    count = len(slots)
    return AttentionTensors(index[None], index[:count], index[:count], index, count, 0)


def batch_of(slots: list[int]) -> StateBatch:
    return StateBatch((), (), tensors_of(slots))


@pytest.mark.parametrize("heads", [32, 48])
def test_four_rows_are_what_each_is_alone(monkeypatch: pytest.MonkeyPatch, heads: int) -> None:
    """Three tokens of 35B-A3B's and 27B's shapes; states are Triton's but for rounding."""
    shape = DeltaShape(16, heads, 128, 128, 4, is_tiled=False)
    raw = random_blocks("Q4_K", HIDDEN, shape.value_size, torch.Generator(DEVICE).manual_seed(7))
    output = TritonQuantLinear([repack("Q4_K", raw, HIDDEN, shape.value_size)], None)
    layer, op = (shape, weights_of(shape)), gated_delta.DeviceGatedDelta(16, DEVICE)
    together, alone, plain = (state_of(shape) for _ in range(3))
    slots, hidden = [3, 0, 4, 1], noise(4, HIDDEN, seed=8)
    for token in range(3):
        projected = noise(4, shape.projected_size, seed=10 + token)
        found = op.add_product(
            hidden.clone(), projected, layer, (together, batch_of(slots)), output
        )
        for row, slot in enumerate(slots):
            part = slice(row, row + 1)
            states = alone, batch_of([slot])
            one = op.add_product(hidden[part].clone(), projected[part], layer, states, output)
            assert torch.equal(one, found[part])
        gated_delta.stepwise_gated_delta(projected, *layer, plain, tensors_of(slots))
    assert torch.equal(together.conv, plain.conv)
    assert torch.equal(together.recurrent, alone.recurrent)
    assert float((together.recurrent - plain.recurrent).norm() / plain.recurrent.norm()) < 1e-2

    def not_wanted(*_: object, **__: object) -> None:
        raise AssertionError("the kernel of CUDA C++ is taken where it can be")

    monkeypatch.setattr(gated_delta_step.OneTokenKernel, "_launch", not_wanted)
    op.add_product(
        hidden, noise(4, shape.projected_size, seed=9), layer, (alone, batch_of(slots)), output
    )


def test_words_of_whole_groups_are_multiplied_by_both_kernels_alike() -> None:
    raw = random_blocks("Q4_K", HIDDEN, 4096, torch.Generator(DEVICE).manual_seed(7))
    output = TritonQuantLinear([repack("Q4_K", raw, HIDDEN, 4096)], None)
    norm = NormWeight(torch.ones(4096, dtype=torch.bfloat16, device=DEVICE), 1e-6)
    normal, (words,) = norm_and_quantise(noise(3, 4096, seed=1), norm, (False,))
    residual = noise(3, HIDDEN, seed=2)
    expected = output.add_to(residual.clone(), normal).float()
    found = output.add_words(residual.clone(), words).float()
    assert float((found - expected).norm() / expected.norm()) < 4e-3
    alone = output.add_words(residual[2:].clone(), words[2:])
    assert torch.equal(alone.float(), found[2:])
