"""Token-wise kernels and few-row products against their references."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.attention import HeadShape
from luce.engine.ops.decode_pieces import pieces_of
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.qkv import HeadNorms, TokenPlaces
from luce.engine.ops.ref import pointwise as ref
from luce.engine.ops.ref.linear import PlainLinear
from luce.engine.ops.ref.projection import StepwiseGatedProduct, StepwiseProduct
from luce.engine.ops.ref.qkv import StepwisePlaceQkv
from luce.engine.ops.triton.gated_mlp import silu_and_mul
from luce.engine.ops.triton.lanes import begin_decode
from luce.engine.ops.triton.linear import FEW_ROWS, DeviceLinear
from luce.engine.ops.triton.place_qkv import FusedPlaceQkv
from luce.engine.ops.triton.projection import FusedProduct
from luce.engine.ops.triton.rms_norm import rms_norm

DTYPES = [torch.float32, torch.float16]
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 576, 4097])
def test_rms_norm(device: torch.device, dtype: torch.dtype, size: int) -> None:
    x = (noise(3, 2 * size) * 5).to(device, dtype)[:, :size]
    weight = noise(size, seed=1).to(device, dtype)
    found = rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    assert error(found, ref.rms_norm(x.double(), weight.double(), 1e-5)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 1024, 1536])
def test_gate(device: torch.device, dtype: torch.dtype, size: int) -> None:
    gate_up = (noise(3, 2 * size) * 4).to(device, dtype)
    assert error(silu_and_mul(gate_up), ref.silu_and_mul(gate_up.double())) < TOLERANCE[dtype]


@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    ("shape", "rotated"),
    [(HeadShape(8, 2, 16), 16), (HeadShape(3, 1, 20), 20), (HeadShape(3, 1, 20), 6)],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_place_qkv(
    device: torch.device,
    dtype: torch.dtype,
    shape: HeadShape,
    rotated: int,
    interleaved: bool,
    has_norms: bool,
) -> None:
    """`rotated`: numbers of a head that are, the leading ones."""
    tokens, width = 5, shape.num_heads + 2 * shape.num_kv_heads
    packed = noise(tokens, width * shape.head_dim).to(device, dtype)
    turns = noise(tokens, 1, rotated // 2, seed=2) * 3
    places = TokenPlaces(
        torch.stack((turns.cos(), turns.sin()), -1).to(device),
        torch.tensor([37, 0, 5, 63, 16], device=device),
    )
    norms = None
    if has_norms:
        query, key = noise(2, shape.head_dim, seed=3).to(device, dtype)
        norms = HeadNorms(query, key, 1e-5)
    cache = torch.zeros(4, 16, 2, shape.num_kv_heads, shape.head_dim, device=device, dtype=dtype)
    expected_cache, expected = cache.clone(), packed.clone()
    cache = cache.permute(0, 2, 3, 1, 4).contiguous().permute(0, 3, 1, 2, 4)
    rotate = ref.rotate_interleaved if interleaved else ref.rotate_half
    plain = StepwisePlaceQkv(ref.rms_norm, rotate, ref.store_kv)
    plain(expected, shape, norms, places, expected_cache)
    FusedPlaceQkv(interleaved)(packed, shape, norms, places, cache)
    num_q = shape.num_heads * shape.head_dim
    assert error(packed[:, :num_q], expected[:, :num_q]) < TOLERANCE[dtype]
    assert error(cache, expected_cache) < TOLERANCE[dtype]
    assert torch.equal(cache == 0, expected_cache == 0), "written where it must not"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 3, FEW_ROWS, FEW_ROWS + 1])
def test_linear(device: torch.device, dtype: torch.dtype, has_bias: bool, rows: int) -> None:
    weight, x, residual = noise(70, 4200), noise(rows, 4200, seed=1), noise(rows, 70, seed=2)
    bias = noise(70, seed=3) if has_bias else None
    weight, x, residual = (each.to(device, dtype) for each in (weight, x, residual))
    if bias is not None:
        bias = bias.to(device, dtype)
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    linear = DeviceLinear(weight, bias)
    assert error(linear(x), expected) < TOLERANCE[dtype]
    added = linear.add_to(residual.clone(), x)
    assert error(added, expected + residual.double()) < TOLERANCE[dtype]
    assert linear.holds(weight)
    assert linear.nbytes == weight.nbytes + (bias.nbytes if bias is not None else 0)


def test_rows_of_an_odd_width_are_aligned(device: torch.device) -> None:
    weight, x = noise(257, 64).to(device), noise(FEW_ROWS + 1, 64, seed=1).to(device)
    found = DeviceLinear(weight, None)(x)
    assert error(found, x.double() @ weight.double().T) < TOLERANCE[torch.float32]
    assert found.stride() == (264, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [576, 1024])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("rows", [1, 3, FEW_ROWS + 1])
def test_normed_product(
    device: torch.device, dtype: torch.dtype, size: int, gated: bool, rows: int
) -> None:
    weight, x = (noise(12, size) * size**-0.5).to(device, dtype), noise(rows, size, seed=1)
    x, norm = x.to(device, dtype), NormWeight(noise(size, seed=2).to(device, dtype), 1e-5)
    stepwise = (
        StepwiseGatedProduct(ref.rms_norm, ref.silu_and_mul)
        if gated
        else StepwiseProduct(ref.rms_norm)
    )
    wide_norm = NormWeight(norm.weight.double(), norm.eps)
    expected = stepwise(x.double(), wide_norm, PlainLinear(weight.double(), None))
    found = FusedProduct(stepwise, gated)(x, norm, DeviceLinear(weight, None))
    assert found.shape == expected.shape
    assert error(found, expected) < 2 * TOLERANCE[dtype]


def test_other_weights_take_single_operations(device: torch.device) -> None:
    plain = PlainLinear(noise(8, 16).to(device), None)
    stepwise, norm = StepwiseProduct(ref.rms_norm), NormWeight(noise(16, seed=2).to(device), 1e-5)
    x = noise(1, 16, seed=1).to(device)
    found = FusedProduct(stepwise, gated=False)(x, norm, plain)
    assert torch.equal(found, stepwise(x, norm, plain))


def test_begin_decode(device: torch.device) -> None:
    tokens = torch.arange(60, dtype=torch.int32, device=device).view(3, 20)
    tables = torch.zeros(3, 5, dtype=torch.int32, device=device)
    lanes = torch.tensor([[2, 9, 7, 0], [0, 3, 4, 0]], dtype=torch.int32, device=device)
    begun = begin_decode(lanes, tokens, tables, 4)
    assert begun.input_ids.tolist() == [49, 3]
    assert begun.slot_mapping.tolist() == [7 * 4 + 1, 4 * 4 + 3]
    assert begun.rows.tolist() == [2, 0]
    assert begun.positions.tolist() == [9, 3]
    assert begun.context_lens.tolist() == [10, 4]
    assert begun.order.tolist() == [[0, 1], [2, 0], [10, 4]]
    assert tables.tolist() == [[4, 0, 0, 0, 0], [0] * 5, [0, 0, 7, 0, 0]]


def test_contexts_are_cut_on_the_device(device: torch.device) -> None:
    positions = [7, 511, 0, 1900, 255, 7, 256, 1299, *([3] * 260)]
    rows = list(range(len(positions)))
    lanes = torch.tensor([[row, at, 1, 0] for row, at in zip(rows, positions, strict=True)])
    tokens = torch.zeros(len(rows), 2000, dtype=torch.int32, device=device)
    tables = torch.zeros(len(rows), 500, dtype=torch.int32, device=device)
    found = begin_decode(lanes.int().to(device), tokens, tables, 4).pieces
    expected = pieces_of([position + 1 for position in positions])
    assert found[0, 0] == expected[0][0]
    assert found[1 : len(expected)].tolist() == [list(piece) for piece in expected[1:]]


def test_lanes_are_ordered_by_their_contexts(device: torch.device) -> None:
    positions = [7, 0, 19, 7, 0, 12, *([3] * 260)]
    rows = list(range(len(positions)))
    lanes = torch.tensor([[row, at, 1, 0] for row, at in zip(rows, positions, strict=True)])
    tokens = torch.zeros(len(rows), 20, dtype=torch.int32, device=device)
    tables = torch.zeros(len(rows), 5, dtype=torch.int32, device=device)
    found = begin_decode(lanes.int().to(device), tokens, tables, 4).order.tolist()
    expected = sorted(rows, key=lambda row: -positions[row])
    assert found == [expected, expected, [positions[row] + 1 for row in expected]]
