"""Norms folded into products: as exact as norms of their own, whatever the batch."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.attention import HeadShape
from luce.engine.ops.projection import FoldedProducts, NormWeight
from luce.engine.ops.qkv import HeadNorms, Placing, TokenPlaces
from luce.engine.ops.ref import pointwise as ref
from luce.engine.ops.ref.linear import PlainLinear
from luce.engine.ops.ref.projection import StepwiseGatedProduct, StepwiseProduct
from luce.engine.ops.ref.qkv import PlacedProduct, StepwisePlaceQkv
from luce.engine.ops.triton import folded, gated_mlp
from luce.engine.ops.triton.linear import FEW_ROWS, DeviceLinear
from luce.engine.ops.triton.place_qkv import FusedPlaceQkv
from luce.engine.ops.triton.projection import FusedProduct
from luce.engine.ops.triton.rms_norm import row_factors

DTYPES = [torch.float32, torch.float16]
if torch.cuda.is_available():  # Triton's interpreter rounds it otherwise.
    DTYPES.append(torch.bfloat16)
BOUNDS = {torch.float32: 1e-6, torch.float16: 1.2e-3, torch.bfloat16: 9e-3}
SHAPE = HeadShape(8, 2, 16)
WIDTH = (SHAPE.num_heads + 2 * SHAPE.num_kv_heads) * SHAPE.head_dim


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def products() -> FoldedProducts:
    found = folded.folded_products(FusedPlaceQkv(interleaved=False))
    assert found is not None
    return found


class Case:
    """Rows with a few large channels, a norm whose weights are spread, and a matrix."""

    def __init__(
        self, shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype
    ) -> None:
        rows, size, out = shape
        x = noise(rows, size, seed=1)
        x[:, 3::97] *= 30
        self.x = x.to(device, dtype)
        self.weight = (noise(out, size) * size**-0.5).to(device, dtype)
        norm = (1 + 0.3 * noise(size, seed=2)).to(device, dtype)
        self.norm = NormWeight(norm, 1e-5)
        self.wide_norm = NormWeight(norm.double(), 1e-5)

    @property
    def plain(self) -> DeviceLinear:
        return DeviceLinear(self.weight, None)

    @property
    def folded(self) -> DeviceLinear:
        return DeviceLinear(self.weight * self.norm.weight, None)

    @property
    def wide(self) -> PlainLinear:
        return PlainLinear(self.weight.double(), None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, FEW_ROWS + 1])
@pytest.mark.parametrize(
    ("size", "out", "programs", "many"),
    [(576, 24, 1024, 512), (1024, 4200, 1, 512), (576, 2200, 1, FEW_ROWS + 1)],
    ids=["one block", "two blocks", "factors apart"],
)
def test_gated_product(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    rows: int,
    size: int,
    out: int,
    programs: int,
    many: int,
) -> None:
    monkeypatch.setattr(gated_mlp, "_PROGRAMS", programs)
    monkeypatch.setattr(folded, "_MANY_ROWS", many)
    monkeypatch.setattr(folded, "_LARGE_BYTES", 0)
    monkeypatch.setattr("luce.engine.ops.triton.linear._BLOCK_OUT", 128)
    case = Case((rows, size, out), device, dtype)
    stepwise = StepwiseGatedProduct(ref.rms_norm, ref.silu_and_mul)
    expected = stepwise(case.x.double(), case.wide_norm, case.wide)
    usual = FusedProduct(stepwise, gated=True)(case.x, case.norm, case.plain)
    found = products().gated(case.x, case.norm, case.folded)
    assert found.dtype == dtype
    assert error(found, expected) < min(BOUNDS[dtype], 1.5 * error(usual, expected) + 1e-7)


@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [2, FEW_ROWS + 1])
def test_qkv(device: torch.device, dtype: torch.dtype, rows: int, has_norms: bool) -> None:
    case = Case((rows, 600, WIDTH), device, dtype)
    angle = noise(rows, 1, SHAPE.head_dim // 2, seed=2) * 3
    slots = torch.tensor([37, 0, 5, 63, 16], device=device)[:rows]
    places = TokenPlaces(torch.stack((angle.cos(), angle.sin()), -1).to(device), slots)
    norms = wide_norms = None
    if has_norms:
        query, key = (1 + 0.3 * noise(2, SHAPE.head_dim, seed=3)).to(device, dtype)
        norms = HeadNorms(query, key, 1e-5)
        wide_norms = HeadNorms(query.double(), key.double(), 1e-5)
    found_cache, wide_cache = (
        torch.zeros(4, 16, 2, SHAPE.num_kv_heads, SHAPE.head_dim, device=device, dtype=each)
        for each in (dtype, torch.float64)
    )
    plain = StepwisePlaceQkv(ref.rms_norm, ref.rotate_half, ref.store_kv)
    expected = PlacedProduct(StepwiseProduct(ref.rms_norm), plain)(
        case.x.double(), case.wide_norm, case.wide, Placing(SHAPE, wide_norms, places, wide_cache)
    )
    found = products().qkv(
        case.x, case.norm, case.folded, Placing(SHAPE, norms, places, found_cache)
    )
    num_q = SHAPE.num_heads * SHAPE.head_dim
    assert error(found[:, :num_q], expected[:, :num_q]) < BOUNDS[dtype]
    assert error(found_cache, wide_cache) < BOUNDS[dtype]
    assert torch.equal(found_cache == 0, wide_cache == 0), "written where it must not"


def test_a_row_does_not_depend_on_others(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case((9, 600, 5000), device, torch.float32)
    product = case.folded(case.x)
    alone = gated_mlp.normed_silu_and_mul(product[7:8], case.x[7:8], 1e-5)
    monkeypatch.setattr(gated_mlp, "_PROGRAMS", 8)
    together = gated_mlp.normed_silu_and_mul(product, case.x, 1e-5)
    assert torch.equal(together[7:8], alone)
    apart = gated_mlp.silu_and_mul(product, row_factors(case.x, 1e-5))
    assert torch.equal(apart[7:8], alone)
