"""Products of every stored type at every level against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_blocks import activations, half_places, random_matrix

from luce.engine.native.library import native_library
from luce.engine.native.tiles import StoredMatrix
from luce.engine.ops.cpu.native import NativeGatedProduct, NativeOps, NativeProduct
from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormWeight
from luce.loaders.ggml_types import TYPES_BY_NAME
from luce.loaders.quants import dequantize

TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
# Of a product's bound (see `product`): half a step of 15 bits, and scales of two levels in float16.
TOLERANCE = 1.1 / (2 * 16319)
TWO_LEVEL_TOLERANCE = 4e-4


def tolerance(type_name: str) -> float:
    return TWO_LEVEL_TOLERANCE if type_name.endswith(("_K", "_XS")) else TOLERANCE


def make(ops: NativeOps, *matrices: object, bias: torch.Tensor | None = None) -> Linear:
    linear = ops.linear([each.stored for each in matrices], bias)  # type: ignore[attr-defined]
    assert linear is not None
    return linear


def product(x: torch.Tensor, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x W^T in float64; and its bound, each activation as large as the largest of its group."""
    wide = x.double().numpy()
    largest = np.abs(wide).reshape(len(wide), -1, 32).max(-1).repeat(32, axis=1)
    return wide @ weights.T, largest @ np.abs(weights).T + 1e-12


def error(found: torch.Tensor, expected: np.ndarray, bound: np.ndarray) -> float:
    return float((np.abs(found.double().numpy() - expected) / bound).max())


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize(("rows", "columns", "tokens"), [(1, 256, 1), (33, 768, 5), (48, 512, 19)])
def test_against_float64(
    ops: NativeOps, type_name: str, rows: int, columns: int, tokens: int
) -> None:
    matrix = random_matrix(type_name, rows, columns)
    x = activations(tokens, columns)
    assert error(make(ops, matrix)(x), *product(x, matrix.values)) < tolerance(type_name)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"])
@pytest.mark.parametrize("columns", [32, 96, 576])
def test_any_number_of_groups(ops: NativeOps, type_name: str, columns: int) -> None:
    matrix = random_matrix(type_name, 17, columns)
    x = activations(3, columns)
    assert error(make(ops, matrix)(x), *product(x, matrix.values)) < TOLERANCE


@pytest.mark.parametrize("type_name", TYPES)
def test_a_row_depends_on_no_other(ops: NativeOps, type_name: str) -> None:
    linear = make(ops, random_matrix(type_name, 40, 512))
    x = activations(23, 512)
    together = linear(x)
    for count in (1, 2, 3, 4, 6, 8, 11):
        assert torch.equal(linear(x[5 : 5 + count].contiguous()), together[5 : 5 + count])


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x88, 0x7F, 0x80])
@pytest.mark.parametrize("value", [3.0, -3.0])
def test_the_largest_numbers_do_not_overflow(
    ops: NativeOps, type_name: str, byte: int, value: float
) -> None:
    """All codes alike and as large as they get, and so all activations."""
    kind = TYPES_BY_NAME[type_name]
    shape = (16, 256)
    blocks = np.full((16 * 256 // kind.block_elements, kind.block_bytes), byte, dtype=np.uint8)
    for start in half_places(type_name):
        blocks[:, start : start + 2] = np.array([0.01], dtype=np.float16).view(np.uint8)
    if type_name == "MXFP4":
        blocks[:, 0] = 120
    raw = blocks.reshape(-1)
    weights = dequantize(type_name, raw, shape).astype(np.float64)
    linear = ops.linear([StoredMatrix(type_name, shape, raw)], None)
    assert linear is not None
    x = torch.full((2, 256), value)
    assert error(linear(x), *product(x, weights)) < 1e-3


def test_parts_of_many_types_with_bias(ops: NativeOps) -> None:
    parts = [random_matrix("Q4_K", 40, 256), random_matrix("Q6_K", 7, 256, seed=2)]
    bias = torch.randn(47, generator=torch.Generator().manual_seed(3))
    x = activations(9, 256)
    expected, bound = product(x, np.concatenate([part.values for part in parts]))
    found = make(ops, *parts, bias=bias)(x) - bias
    assert error(found, expected, bound) < TWO_LEVEL_TOLERANCE


def test_residual_is_added_in_place(ops: NativeOps) -> None:
    linear = make(ops, random_matrix("Q4_1", 64, 96))
    x, residual = activations(5, 96), activations(5, 64, seed=4)
    expected = residual + linear(x)
    found = linear.add_to(residual, x)
    assert found.data_ptr() == residual.data_ptr()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_norm_and_product(ops: NativeOps) -> None:
    matrix = random_matrix("Q8_0", 50, 576)
    norm = NormWeight(activations(1, 576, seed=5)[0].abs(), 1e-5)
    x = activations(10, 576)
    normed = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    found = NativeProduct(_unreachable)(x, norm, make(ops, matrix))
    assert error(found, *product(normed * norm.weight, matrix.values)) < TOLERANCE


@pytest.mark.parametrize("tokens", [1, 4, 13])
@pytest.mark.parametrize("rows", [32, 96])
def test_gate(ops: NativeOps, tokens: int, rows: int) -> None:
    parts = [random_matrix("Q4_0", rows, 256), random_matrix("Q4_1", rows, 256, seed=6)]
    norm = NormWeight(torch.ones(256), 1e-6)
    x = activations(tokens, 256)
    normed = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    (gate, gate_bound), (up, up_bound) = (product(normed, part.values) for part in parts)
    found = NativeGatedProduct(_unreachable)(x, norm, make(ops, *parts))
    expected = gate / (1 + np.exp(-gate)) * up
    assert error(found, expected, np.abs(gate) * up_bound + np.abs(up) * gate_bound) < 2 * TOLERANCE


def _unreachable(x: torch.Tensor, norm: NormWeight, linear: Linear) -> torch.Tensor:
    raise AssertionError("these linears are native")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_stays_none_in_its_row(ops: NativeOps, value: float) -> None:
    linear = make(ops, random_matrix("Q4_1", 32, 64))
    x = activations(9, 64)
    healthy = linear(x)
    x[3, 40] = value
    found = linear(x)
    assert bool(found[3].isnan().all())
    others = [row for row in range(9) if row != 3]
    assert torch.equal(found[others], healthy[others])


def test_zeros(ops: NativeOps) -> None:
    found = make(ops, random_matrix("Q8_0", 20, 64))(torch.zeros(2, 64))
    assert torch.equal(found, torch.zeros(2, 20))


@pytest.mark.parametrize("type_name", TYPES)
def test_rows_of_a_table(ops: NativeOps, type_name: str) -> None:
    matrix = random_matrix(type_name, 35, 256)
    table = ops.embedding(matrix.stored)
    assert table is not None
    ids = torch.tensor([34, 0, 16, 16, 5], dtype=torch.int32)
    expected = matrix.values[ids.numpy()]
    bound = 1e-7 if tolerance(type_name) == TOLERANCE else 1e-3
    assert np.abs(table.forward(ids).numpy() - expected).max() < bound * np.abs(expected).max()
    x = activations(2, 256)
    assert torch.equal(table.head()(x), make(ops, matrix)(x))


def test_types_without_kernels_are_left(ops: NativeOps) -> None:
    stored = StoredMatrix("F16", (4, 32), np.zeros(256, dtype=np.uint8))
    assert ops.linear([stored], None) is None
    assert ops.embedding(stored) is None
    odd = StoredMatrix("Q4_K", (4, 32), np.zeros(72, dtype=np.uint8))
    assert ops.linear([odd], None) is None


def test_threads_do_not_change_results(ops: NativeOps) -> None:
    library = native_library()
    assert not isinstance(library, str)
    linear = make(ops, random_matrix("Q4_1", 1000, 256))
    x = activations(7, 256)
    results = []
    for count in (1, 2, 5):
        assert library.use_threads(count) == count
        results.append(linear(x))
    library.use_threads(2)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
