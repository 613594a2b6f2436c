"""Gates, rounded norms and plain matrices at every level against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from random_blocks import activations, random_matrix

from luce.engine.native.tiles import StoredMatrix
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.cpu.native import NativeOps
from luce.engine.ops.cpu.native_gates import NativeGatedHeads, NativeRmsNorm, NativeSiluAndMul
from luce.engine.ops.cpu.native_plain import MixedLinear, mixed_linear, native_linear
from luce.engine.ops.ref.gated_heads import ReferenceGatedHeads
from luce.engine.ops.ref.pointwise import silu_and_mul

HEADS = HeadShape(6, 2, 32)


def stored(type_name: str, values: torch.Tensor) -> StoredMatrix:
    """A plain matrix as a file has it."""
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[type_name]
    raw = values.to(dtype).contiguous().view(torch.uint8).flatten().numpy()
    rows, columns = values.shape
    return StoredMatrix(type_name, (rows, columns), raw)


@pytest.mark.parametrize("tokens", [1, 2, 9])
def test_gated_heads(ops: NativeOps, poisoned: None, tokens: int) -> None:
    native, plain = NativeGatedHeads(ops.tape), ReferenceGatedHeads()
    projected = activations(tokens, 2 * 8 * 32)
    found = native.split(projected, HEADS)
    assert torch.equal(found, plain.split(projected, HEADS))
    mixed = activations(tokens, 6 * 32, seed=2)
    expected = plain.gate(mixed.double(), projected.double(), HEADS)
    found = native.gate(mixed, projected, HEADS)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("tokens", "width"), [(1, 32), (7, 96), (40, 256)])
def test_silu_and_mul(ops: NativeOps, poisoned: None, tokens: int, width: int) -> None:
    both = activations(tokens, 2 * width)
    expected = silu_and_mul(both.double())
    found = NativeSiluAndMul(ops.tape, silu_and_mul)(both)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-7)


def test_silu_and_mul_of_an_odd_width(ops: NativeOps) -> None:
    both = activations(3, 2 * 40)
    found = NativeSiluAndMul(ops.tape, silu_and_mul)(both)
    assert torch.equal(found, silu_and_mul(both))


def test_a_recorded_norm_rounds_for_all_that_read_it(ops: NativeOps) -> None:
    """Played, it gives the bits of the norm and of the product that runs by itself."""
    weight, x = 1 + 0.1 * activations(1, 64, seed=3)[0], torch.arange(5, dtype=torch.int32)
    table = ops.embedding(random_matrix("Q8_0", 50, 64).stored)
    linear = ops.linear([random_matrix("Q4_0", 48, 64).stored], None)
    assert table is not None
    assert linear is not None
    norm = NativeRmsNorm(ops.tape)
    expected = linear(norm(table.forward(x), weight, 1e-6))
    recorded = ops.tape.record(lambda: linear(norm(table.forward(x), weight, 1e-6)))
    assert recorded is not None
    program, result = recorded
    assert len(program.ops) == 3, "table, norm, product: nothing rounds again"
    ops.tape.step.num_tokens, ops.tape.step.input_ids = len(x), x.data_ptr()
    ops.tape.play(program)
    assert torch.equal(result, expected)


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (13, 96), (257, 64)])
def test_plain_matrices(
    ops: NativeOps, poisoned: None, type_name: str, rows: int, columns: int
) -> None:
    part = stored(type_name, activations(rows, columns, seed=4))
    values = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[type_name]
    raw = torch.from_numpy(part.raw.view(values).reshape(rows, columns).copy())
    wide = (raw.view(torch.bfloat16) if type_name == "BF16" else raw).double()
    linear = mixed_linear(ops, [part])
    assert linear is not None
    assert linear.nbytes == 4 * rows * columns
    for tokens in (1, 3, 4, 6):
        x = activations(tokens, columns)
        bound = x.double().abs() @ wide.abs().T
        assert bool(((linear(x).double() - x.double() @ wide.T).abs() < 1e-6 * bound).all())


def test_tiles_and_plain_rows_in_any_order(ops: NativeOps, poisoned: None) -> None:
    plain = [stored("F32", activations(rows, 64, seed=rows)) for rows in (3, 17)]
    tiled = [random_matrix(name, 20, 64).stored for name in ("Q8_0", "Q4_0")]
    parts = [tiled[0], plain[0], tiled[1], plain[1]]
    linear, x = native_linear(ops, parts, None), activations(9, 64)
    assert isinstance(linear, MixedLinear)
    alone = []
    for part in parts:
        one = mixed_linear(ops, [part])
        assert one is not None
        alone.append(one(x))
    found = linear(x)
    assert torch.equal(found, torch.cat(alone, dim=1))
    for token in range(9):
        assert torch.equal(linear(x[token : token + 1]), found[token : token + 1])
    residual = activations(9, 60, seed=5)
    assert torch.equal(linear.add_to(residual.clone(), x), residual + found)


def test_what_has_no_kernels_is_left_to_others(ops: NativeOps) -> None:
    plain = stored("F32", activations(4, 64))
    tiled = random_matrix("Q8_0", 20, 64).stored
    unknown = StoredMatrix("IQ2_XXS", (20, 64), np.zeros(1, dtype=np.uint8))
    assert native_linear(ops, [plain], None) is None
    assert native_linear(ops, [plain, unknown], None) is None
    assert native_linear(ops, [tiled, plain], torch.zeros(24)) is None
    assert mixed_linear(ops, [plain, unknown]) is None
