"""Gated DeltaNet at every level: by its formulas, and what it must not depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from delta_oracle import formulas, random, random_state, random_weights

from luce.engine.ops.cpu.native import NativeOps
from luce.engine.ops.cpu.native_delta import NativeGatedDelta, shape_refusal
from luce.engine.ops.gated_delta import DeltaShape, LayerState, StateBatch
from luce.engine.ops.ref.gated_delta import gated_delta

SMALL = DeltaShape(2, 6, 16, 32, 4, is_tiled=False)
SHAPES = {
    "small": SMALL,
    "tiled": replace(SMALL, is_tiled=True),
    "as many keys": DeltaShape(3, 3, 32, 96, 3, is_tiled=True),
    "narrow window": DeltaShape(1, 2, 48, 64, 2, is_tiled=False),
    "usual": DeltaShape(1, 2, 128, 128, 4, is_tiled=True),
    "largest": DeltaShape(1, 1, 256, 256, 8, is_tiled=False),
}
COUNTS = [1, 2, 3, 4, 16, 17, 37]


def layer(ops: NativeOps) -> NativeGatedDelta:
    return NativeGatedDelta(ops.tape, gated_delta)


def run(
    ops: NativeOps,
    projected: torch.Tensor,
    state: LayerState,
    batch: StateBatch,
    shape: DeltaShape = SMALL,
) -> torch.Tensor:
    return layer(ops)(projected, shape, random_weights(shape), state, batch)


def one(count: int, slot: int = 0) -> StateBatch:
    return StateBatch((slot,), (0, count))


def tokens(count: int, shape: DeltaShape = SMALL, seed: int = 20) -> torch.Tensor:
    return random(count, shape.projected_size, seed=seed)


@pytest.mark.parametrize("name", SHAPES)
def test_by_its_formulas(ops: NativeOps, poisoned: None, name: str) -> None:
    shape = SHAPES[name]
    assert shape_refusal(shape) is None
    for count in COUNTS:
        state, projected = random_state(shape), tokens(count, shape)
        expected = formulas(projected, shape, random_weights(shape), state, slot=3)
        found = run(ops, projected, state, one(count, slot=3), shape)
        for mine, theirs in zip((found, state.conv[3], state.recurrent[3]), expected, strict=True):
            torch.testing.assert_close(mine.double(), theirs, rtol=2e-4, atol=2e-4)
        untouched = random_state(shape)
        for slot in (0, 1, 2, 4):
            assert torch.equal(state.conv[slot], untouched.conv[slot])
            assert torch.equal(state.recurrent[slot], untouched.recurrent[slot])


@pytest.mark.parametrize("split", [[1] * 40, [39, 1], [1, 2, 37], [16, 3, 17, 4]])
def test_where_a_step_ends_changes_no_bit(ops: NativeOps, split: list[int]) -> None:
    projected, whole, parts = tokens(40), random_state(SMALL), random_state(SMALL)
    expected = run(ops, projected, whole, one(40))
    found = [
        run(ops, part, parts, one(len(part))) for part in torch.split_with_sizes(projected, split)
    ]
    assert torch.equal(torch.cat(found), expected)
    assert torch.equal(parts.recurrent, whole.recurrent)
    assert torch.equal(parts.conv, whole.conv)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_neighbours_and_threads_change_no_bit(ops: NativeOps, threads: int) -> None:
    """Three sequences of a step, in slots out of order, against each alone in one thread."""
    counts, slots = [5, 1, 30], [4, 0, 2]
    projected, together, alone = tokens(36), random_state(SMALL), random_state(SMALL)
    with ops.tape.library.one_thread():
        expected = [
            run(ops, part, alone, one(len(part), slot))
            for part, slot in zip(torch.split_with_sizes(projected, counts), slots, strict=True)
        ]
    try:
        ops.tape.library.use_threads(threads)
        found = run(ops, projected, together, StateBatch(tuple(slots), (0, 5, 6, 36)))
    finally:
        ops.tape.library.use_threads(2)
    assert torch.equal(found, torch.cat(expected))
    assert torch.equal(together.recurrent, alone.recurrent)
    assert torch.equal(together.conv, alone.conv)


def test_heads_that_forget_at_once_and_gates_that_are_shut(ops: NativeOps) -> None:
    """The ends of exp, softplus and sigmoid."""
    projected = tokens(3)
    projected[0, -12:] = 90
    projected[1, -12:] = -90
    projected[2, SMALL.channels :][: SMALL.value_size] = -200
    state = random_state(SMALL)
    expected = formulas(projected, SMALL, random_weights(SMALL), state, slot=0)
    found = run(ops, projected, state, one(3))
    torch.testing.assert_close(found.double(), expected[0], rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(state.recurrent[0].double(), expected[2], rtol=2e-4, atol=2e-4)


def test_what_is_no_number_stays_in_its_sequence(ops: NativeOps) -> None:
    projected, state, clean = tokens(4), random_state(SMALL), random_state(SMALL)
    expected = run(ops, projected, clean, StateBatch((0, 1), (0, 2, 4)))
    projected[0, 0] = torch.nan
    found = run(ops, projected, state, StateBatch((0, 1), (0, 2, 4)))
    assert bool(found[:2].isnan().any())
    assert torch.equal(found[2:], expected[2:])
    assert torch.equal(state.recurrent[1], clean.recurrent[1])


@pytest.mark.parametrize(
    "odd",
    [
        replace(SMALL, key_head_dim=24),
        replace(SMALL, value_head_dim=48),
        replace(SMALL, value_head_dim=288),
        replace(SMALL, conv_width=9),
    ],
)
def test_other_shapes_go_to_the_reference(ops: NativeOps, odd: DeltaShape) -> None:
    assert shape_refusal(odd) is not None
    state, plain, projected = random_state(odd), random_state(odd), tokens(5, odd)
    found = run(ops, projected, state, one(5), odd)
    assert torch.equal(found, gated_delta(projected, odd, random_weights(odd), plain, one(5)))
    assert torch.equal(state.recurrent, plain.recurrent)
