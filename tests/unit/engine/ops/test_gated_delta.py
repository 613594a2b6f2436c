"""The recurrence of gated DeltaNet by its formulas, and what it must not depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState, StateBatch
from luce.engine.ops.ref.gated_delta import gated_delta

SHAPE = DeltaShape(
    num_key_heads=2,
    num_value_heads=6,
    key_head_dim=16,
    value_head_dim=16,
    conv_width=4,
    is_tiled=False,
)
SLOTS = 5


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


def weights(shape: DeltaShape = SHAPE) -> DeltaWeights:
    heads = shape.num_value_heads
    return DeltaWeights(
        conv=random(shape.channels, shape.conv_width, seed=1),
        decay=-random(heads, seed=2).exp(),
        dt_bias=random(heads, seed=3),
        norm=1 + 0.1 * random(shape.value_head_dim, seed=4),
        eps=1e-6,
    )


def state(seed: int | None = None, shape: DeltaShape = SHAPE) -> LayerState:
    """Of every slot, zero or random."""
    sizes = (shape.conv_elements, shape.recurrent_elements)
    if seed is None:
        return LayerState(*(torch.zeros(SLOTS, size) for size in sizes))
    return LayerState(*(random(SLOTS, size, seed=seed + size) for size in sizes))


def tokens(count: int, seed: int, shape: DeltaShape = SHAPE) -> torch.Tensor:
    return random(count, shape.projected_size, seed=seed)


def run(
    projected: torch.Tensor, states: LayerState, batch: StateBatch, shape: DeltaShape = SHAPE
) -> torch.Tensor:
    return gated_delta(projected, shape, weights(shape), states, batch)


def one(count: int, slot: int = 0) -> StateBatch:
    return StateBatch((slot,), (0, count))


@dataclass
class Plain:
    """The formulas in float64, token by token and head by head."""

    shape: DeltaShape
    inputs: list[np.ndarray]
    memory: np.ndarray

    @classmethod
    def of(cls, states: LayerState, slot: int, shape: DeltaShape) -> Plain:
        tail = states.conv[slot].double().numpy().reshape(shape.conv_width - 1, -1)
        sizes = (shape.num_value_heads, shape.key_head_dim, shape.value_head_dim)
        return cls(shape, list(tail), states.recurrent[slot].double().numpy().reshape(sizes).copy())

    def step(self, projected: torch.Tensor) -> np.ndarray:
        shape, fixed = self.shape, weights(self.shape)
        row = projected.double().numpy()
        ends = np.cumsum([shape.channels, shape.value_size, shape.num_value_heads])
        qkv, z, beta, a = np.split(row, ends)
        self.inputs.append(qkv)
        taps = fixed.conv.double().numpy()
        mixed = sum(taps[:, j] * self.inputs[-shape.conv_width + j] for j in range(len(taps[0])))
        mixed = mixed / (1 + np.exp(-mixed))
        q, k, v = np.split(mixed, [shape.key_size, 2 * shape.key_size])
        return np.concatenate(
            [self._head(head, (q, k, v, z), beta[head], a[head]) for head in range(len(beta))]
        )

    def _head(
        self, head: int, vectors: tuple[np.ndarray, ...], beta: float, a: float
    ) -> np.ndarray:
        shape, fixed = self.shape, weights(self.shape)
        ratio = shape.num_value_heads // shape.num_key_heads
        of_key = head % shape.num_key_heads if shape.is_tiled else head // ratio
        q, k = (each.reshape(-1, shape.key_head_dim)[of_key] for each in vectors[:2])
        v, z = (each.reshape(-1, shape.value_head_dim)[head] for each in vectors[2:])
        q, k = (each / np.sqrt((each**2).sum() + 1e-6) for each in (q, k))
        softplus = math.log1p(math.exp(a + float(fixed.dt_bias[head])))
        memory = self.memory[head] * math.exp(float(fixed.decay[head]) * softplus)
        memory = memory + np.outer(k, (v - memory.T @ k) / (1 + math.exp(-beta)))
        self.memory[head] = memory
        out = memory.T @ (q / math.sqrt(shape.key_head_dim))
        out = out / np.sqrt((out**2).mean() + fixed.eps) * fixed.norm.double().numpy()
        return out * z / (1 + np.exp(-z))


@pytest.mark.parametrize("is_tiled", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 63, 64, 65, 130])
def test_by_its_formulas(count: int, is_tiled: bool) -> None:
    shape = replace(SHAPE, is_tiled=is_tiled)
    states, projected = state(seed=10), tokens(count, seed=20)
    plain = Plain.of(states, 3, shape)
    expected = np.stack([plain.step(row) for row in projected])
    found = run(projected, states, one(count, slot=3), shape)
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-4, atol=2e-4)
    memory = states.recurrent[3].view(plain.memory.shape).numpy()
    np.testing.assert_allclose(memory, plain.memory, rtol=2e-4, atol=2e-4)
    tail = states.conv[3].view(3, -1).numpy()
    np.testing.assert_allclose(tail, np.stack(plain.inputs[-3:]), rtol=1e-6)


@pytest.mark.parametrize("split", [[1] * 40, [39, 1], [1, 2, 37], [16, 16, 8]])
def test_where_a_step_ends_changes_no_bit(split: list[int]) -> None:
    projected = tokens(40, seed=30)
    whole_state, parts_state = state(seed=40), state(seed=40)
    whole = run(projected, whole_state, one(40))
    parts = [run(part, parts_state, one(len(part))) for part in projected.split(split)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(parts_state.recurrent, whole_state.recurrent)
    assert torch.equal(parts_state.conv, whole_state.conv)


def test_neighbours_change_no_bit() -> None:
    """Three sequences of a step, in slots out of order, against each alone."""
    counts, slots = [5, 1, 70], [4, 0, 2]
    starts = (0, 5, 6, 76)
    projected, together, alone = tokens(76, seed=50), state(seed=60), state(seed=60)
    found = run(projected, together, StateBatch(tuple(slots), starts))
    expected = [
        run(part, alone, one(len(part), slot))
        for part, slot in zip(projected.split(counts), slots, strict=True)
    ]
    assert torch.equal(found, torch.cat(expected))
    assert torch.equal(together.recurrent, alone.recurrent)
    untouched = state(seed=60)
    for slot in (1, 3):
        assert torch.equal(together.recurrent[slot], untouched.recurrent[slot])
        assert torch.equal(together.conv[slot], untouched.conv[slot])


def test_the_orders_of_heads_are_each_others_permutation() -> None:
    """Tiled heads of permuted values, gates and decays give the grouped result, permuted."""
    ratio = SHAPE.num_value_heads // SHAPE.num_key_heads
    order = [key * ratio + j for j in range(ratio) for key in range(SHAPE.num_key_heads)]
    by_value = torch.tensor([16 * head + i for head in order for i in range(16)])
    heads, keys, values = torch.tensor(order), 2 * SHAPE.key_size, SHAPE.value_size
    columns = torch.cat(
        [
            torch.arange(keys),
            keys + by_value,
            SHAPE.channels + by_value,
            SHAPE.channels + values + heads,
            SHAPE.channels + values + SHAPE.num_value_heads + heads,
        ]
    )
    grouped, fixed, projected = state(), weights(), tokens(9, seed=70)
    expected = gated_delta(projected, SHAPE, fixed, grouped, one(9))
    permuted = replace(
        fixed,
        conv=fixed.conv[columns[: SHAPE.channels]],
        decay=fixed.decay[heads],
        dt_bias=fixed.dt_bias[heads],
    )
    tiled = replace(SHAPE, is_tiled=True)
    found = gated_delta(projected[:, columns], tiled, permuted, state(), one(9))
    torch.testing.assert_close(found, expected[:, by_value], rtol=1e-5, atol=1e-6)


def test_narrow_types_keep_their_state_wide() -> None:
    projected = tokens(20, seed=80)
    exact, states = state(), state()
    expected = run(projected, exact, one(20))
    fixed = weights()
    narrow = replace(fixed, conv=fixed.conv.bfloat16(), norm=fixed.norm.bfloat16())
    states = replace(states, conv=states.conv.bfloat16())
    found = gated_delta(projected.bfloat16(), SHAPE, narrow, states, one(20))
    assert found.dtype == torch.bfloat16
    assert states.recurrent.dtype == torch.float32
    assert (found.float() - expected).abs().max() < 0.1 * expected.abs().max()
