"""Mixtures of experts at every level: the choice, and what the chosen make of a token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_blocks import activations, random_matrix

from luce.engine.native import tiles
from luce.engine.native.tiles import StoredMatrix
from luce.engine.ops.cpu.native import NativeOps
from luce.engine.ops.cpu.native_moe import (
    NativeAddMixture,
    NativeExperts,
    NativeRoute,
    native_experts,
)
from luce.engine.ops.moe import Routing
from luce.engine.ops.ref import moe as plain

EXPERTS, SIZE, HIDDEN = 6, 96, 256
SHAPE = (EXPERTS, SIZE, HIDDEN)
# Of a result's norm: two products one after the other, as `test_products` bounds each.
TOLERANCE = 5e-4
TWO_LEVEL_TOLERANCE = 2e-3


def route(
    ops: NativeOps, logits: torch.Tensor, num_chosen: int, *, norm_weights: bool = True
) -> Routing:
    native = NativeRoute(ops.tape, plain.route)
    loads = torch.zeros(logits.shape[1], dtype=torch.int64)
    found = native(logits, num_chosen, norm_weights=norm_weights, loads=loads)
    counts = torch.bincount(found.experts.flatten(), minlength=logits.shape[1])
    assert torch.equal(loads, counts)
    return found


@pytest.mark.parametrize("norm_weights", [False, True])
@pytest.mark.parametrize(("tokens", "count", "num_chosen"), [(1, 5, 5), (3, 8, 2), (40, 130, 8)])
def test_choice(
    ops: NativeOps, poisoned: None, tokens: int, count: int, num_chosen: int, norm_weights: bool
) -> None:
    """Logits of a wider product, as the shared expert's gate makes it."""
    logits = activations(tokens, count + 1)[:, :count]
    found = route(ops, logits, num_chosen, norm_weights=norm_weights)
    loads = torch.zeros(count, dtype=torch.int64)
    wide = logits.double()
    shares = torch.softmax(wide, dim=1)
    weights, experts = shares.sort(descending=True, stable=True)
    weights, experts = weights[:, :num_chosen], experts[:, :num_chosen]
    if norm_weights:
        weights = weights / weights.sum(1, keepdim=True)
    assert torch.equal(found.experts, experts)
    torch.testing.assert_close(found.weights.double(), weights, rtol=2e-6, atol=1e-12)
    other = plain.route(logits, num_chosen, norm_weights=norm_weights, loads=loads)
    assert torch.equal(found.experts, other.experts)


def test_equals_go_to_the_lower_number(ops: NativeOps) -> None:
    found = route(ops, torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0, 3.0]]), 3)
    assert found.experts.tolist() == [[1, 2, 3]]
    torch.testing.assert_close(found.weights, torch.full((1, 3), 1 / 3))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_choose_experts_that_are_there(
    ops: NativeOps, bad: float
) -> None:
    logits = activations(3, 7)
    logits[1, 2:6] = bad
    found = route(ops, logits, 5)
    for chosen in found.experts.tolist():
        assert len(set(chosen)) == 5
        assert set(chosen) <= set(range(7))
    assert not bool(found.weights[[0, 2]].isnan().any())


def test_too_many_experts_are_left_to_the_reference(ops: NativeOps) -> None:
    logits = activations(2, 1100)
    loads = torch.zeros(1100, dtype=torch.int64)
    expected = plain.route(logits, 4, norm_weights=True, loads=loads.clone())
    found = NativeRoute(ops.tape, plain.route)(logits, 4, norm_weights=True, loads=loads)
    assert torch.equal(found.experts, expected.experts)
    assert torch.equal(found.weights, expected.weights)


@dataclass(frozen=True)
class Pack:
    """Experts, and their matrices in float64."""

    native: NativeExperts
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    def formulas(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """Token by token, expert by expert."""
        out = torch.zeros(x.shape, dtype=torch.float64)
        for token, row in enumerate(x.double()):
            for expert, weight in zip(routing.experts[token], routing.weights[token], strict=True):
                inner = F.silu(self.gate[expert] @ row) * (self.up[expert] @ row)
                out[token] += weight.double() * (self.down[expert] @ inner)
        return out


def pack(ops: NativeOps, types: tuple[str, str, str], size: int = SIZE) -> Pack:
    sizes = ((EXPERTS * size, HIDDEN), (EXPERTS * size, HIDDEN), (EXPERTS * HIDDEN, size))
    matrices = [
        random_matrix(name, *shape, seed=seed)
        for seed, (name, shape) in enumerate(zip(types, sizes, strict=True))
    ]
    native = native_experts(ops, [each.stored for each in matrices], (EXPERTS, size, HIDDEN))
    assert native is not None
    wide = [
        torch.from_numpy(each.values).view(EXPERTS, -1, each.values.shape[1]) for each in matrices
    ]
    return Pack(native, *wide)


def routed(ops: NativeOps, tokens: int, num_chosen: int) -> Routing:
    return route(ops, activations(tokens, EXPERTS, seed=9), num_chosen)


@pytest.mark.parametrize(
    ("types", "size"),
    [
        (("Q8_0", "Q8_0", "Q8_0"), SIZE),
        (("Q4_0", "Q5_1", "IQ4_NL"), SIZE),
        (("Q4_K", "Q4_K", "Q6_K"), 256),
        (("MXFP4", "MXFP4", "Q4_1"), 32),
    ],
)
@pytest.mark.parametrize(("tokens", "num_chosen"), [(1, 1), (1, 4), (5, 2), (60, 3)])
def test_sum_of_the_chosen(
    ops: NativeOps,
    poisoned: None,
    types: tuple[str, str, str],
    size: int,
    tokens: int,
    num_chosen: int,
) -> None:
    made, x = pack(ops, types, size), activations(tokens, HIDDEN)
    routing = routed(ops, tokens, num_chosen)
    expected = made.formulas(x, routing)
    found = made.native(x, routing)
    tolerance = TWO_LEVEL_TOLERANCE if "Q4_K" in types else TOLERANCE
    assert (found.double() - expected).norm() < tolerance * expected.norm()


def test_no_token_at_all(ops: NativeOps) -> None:
    made = pack(ops, ("Q8_0", "Q8_0", "Q8_0"))
    nothing = Routing(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 2))
    assert made.native(torch.zeros(0, HIDDEN), nothing).shape == (0, HIDDEN)


def test_rows_that_leave_no_room_on_the_stack_have_no_kernels(ops: NativeOps) -> None:
    nothing = np.empty(0, dtype=np.uint8)
    widths = ((32, 65536), (32, 65536), (65536, 32))
    stored = [StoredMatrix("Q8_0", shape, nothing) for shape in widths]
    assert native_experts(ops, stored, (1, 32, 65536)) is None


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_neighbours_threads_and_order_change_no_bit(ops: NativeOps, threads: int) -> None:
    made, x = pack(ops, ("Q4_0", "Q4_0", "Q8_0")), activations(37, HIDDEN)
    routing = routed(ops, 37, 3)
    try:
        ops.tape.library.use_threads(threads)
        together = made.native(x, routing)
        for token in range(37):
            part = slice(token, token + 1)
            alone = Routing(routing.experts[part].flip(1), routing.weights[part].flip(1))
            assert torch.equal(made.native(x[part], alone), together[part])
    finally:
        ops.tape.library.use_threads(2)


def test_all_tokens_at_one_expert(ops: NativeOps, poisoned: None) -> None:
    made, x = pack(ops, ("Q8_0", "Q8_0", "Q8_0")), activations(21, HIDDEN)
    routing = Routing(torch.full((21, 1), EXPERTS - 1), torch.ones(21, 1))
    expected = made.formulas(x, routing)
    found = made.native(x, routing)
    assert (found.double() - expected).norm() < TOLERANCE * expected.norm()


@pytest.mark.parametrize("tokens", [1, 11])
@pytest.mark.parametrize("width", [96, 40])
def test_sum_with_the_shared_expert(ops: NativeOps, tokens: int, width: int) -> None:
    hidden, mixed, shared = (activations(tokens, width, seed=seed) for seed in (1, 2, 3))
    gate = activations(tokens, 5, seed=4)[:, 4:]
    add = NativeAddMixture(ops.tape, plain.add_mixture)
    for others in ((shared, gate), (None, None)):
        wide = [None if each is None else each.double() for each in others]
        expected = plain.add_mixture(hidden.double(), mixed.double(), *wide)
        found = hidden.clone()
        assert add(found, mixed, *others) is found
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def test_memory_is_that_of_the_file(ops: NativeOps) -> None:
    native = pack(ops, ("Q8_0", "Q8_0", "Q8_0")).native
    assert native.nbytes == 3 * EXPERTS * SIZE * HIDDEN // 32 * 34
    assert ops.has_experts


@pytest.mark.parametrize("shape", [(EXPERTS, 48, HIDDEN), (2000, 32, 32)])
def test_sizes_without_kernels(ops: NativeOps, shape: tuple[int, int, int]) -> None:
    count, size, hidden = shape
    empty = np.zeros(1, dtype=np.uint8)
    inner = StoredMatrix("Q8_0", (count * size, hidden), empty)
    outer = StoredMatrix("Q8_0", (count * hidden, size), empty)
    assert native_experts(ops, [inner, inner, outer], shape) is None


def test_types_without_kernels(ops: NativeOps) -> None:
    inner = random_matrix("Q8_0", EXPERTS * SIZE, HIDDEN).stored
    values = np.zeros(4 * EXPERTS * HIDDEN * SIZE, dtype=np.uint8)
    outer = StoredMatrix("F32", (EXPERTS * HIDDEN, SIZE), values)
    assert native_experts(ops, [inner, inner, outer], SHAPE) is None
    assert not ops.has_experts


def test_matrices_filled_in_runs_are_the_same(
    ops: NativeOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By several threads, and the last run a short one."""
    part = random_matrix("Q4_K", 150, HIDDEN).stored
    expected = ops.store.linear([part], None).parts[0]
    monkeypatch.setattr(tiles, "_RUN_ELEMENTS", 32 * HIDDEN)
    found = ops.store.linear([part], None).parts[0]
    assert np.array_equal(found.memory, expected.memory)
    assert found.row_factors is not None
    assert expected.row_factors is not None
    assert np.array_equal(found.row_factors, expected.row_factors)
