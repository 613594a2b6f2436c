"""FP8 products on a GPU, as they are cut there: every class at odd sizes and at a real one."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

from luce.engine.fp8_scales import Fp8Scales  # noqa: E402
from luce.engine.fp8_weights import Fp8Matrix, empty_fp8  # noqa: E402
from luce.engine.ops.ref.fp8_matmul import decode  # noqa: E402
from luce.engine.ops.triton.fp8_linear import DEFAULT_TILINGS, TritonFp8Linear  # noqa: E402

FEW = max(DEFAULT_TILINGS.vector)
SOME = max(DEFAULT_TILINGS.tile)
# Results are bfloat16, and so are the weights of the vendor's product.
TOLERANCE = 3.5e-3


def made(rows: int, columns: int, *, is_block: bool = True, seed: int = 0) -> Fp8Matrix:
    generator = torch.Generator().manual_seed(seed)
    shape = (-(-rows // 128), -(-columns // 128)) if is_block else (rows, 1)
    scales = 0.001 + 0.02 * torch.rand(shape, generator=generator)
    matrix = empty_fp8([Fp8Scales(scales, rows, is_block)], columns, torch.device("cuda"))
    numbers = 50 * torch.randn(rows, columns, generator=generator)
    matrix.codes.copy_(numbers.to(torch.float8_e4m3fn).view(torch.uint8))
    return matrix


def noise(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda", dtype=dtype)


def error(found: torch.Tensor, x: torch.Tensor, matrix: Fp8Matrix) -> float:
    expected = x.double() @ decode(matrix).double().T
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("rows", [1, 2, 3, FEW + 1, 33, SOME, SOME + 1])
@pytest.mark.parametrize("is_block", [True, False])
@pytest.mark.parametrize("shape", [(333, 648), (1024, 4096)])
def test_products(shape: tuple[int, int], rows: int, is_block: bool) -> None:
    matrix, x = made(*shape, is_block=is_block), noise(rows, shape[1])
    linear = TritonFp8Linear([matrix], None)
    found = linear(x)
    assert error(found, x, matrix) < TOLERANCE
    poison = torch.full_like(found, float("nan"))
    assert linear.add_to(poison, x).isnan().all()
    assert error(linear.add_to(torch.zeros_like(found), x), x, matrix) < TOLERANCE


@pytest.mark.parametrize("rows", [1, FEW + 1, SOME + 1])
def test_float32_is_not_rounded(rows: int) -> None:
    matrix, x = made(640, 2048), noise(rows, 2048, dtype=torch.float32)
    assert error(TritonFp8Linear([matrix], None)(x), x, matrix) < 1e-5


def test_few_rows_give_the_same_bits_whatever_their_number() -> None:
    linear, x = TritonFp8Linear([made(640, 4096)], None), noise(FEW, 4096)
    together = linear(x)
    for count in range(1, FEW):
        assert torch.equal(linear(x[:count]), together[:count])


@pytest.mark.parametrize("rows", [FEW + 1, 64])
def test_a_row_does_not_depend_on_the_others(rows: int) -> None:
    linear, x = TritonFp8Linear([made(640, 4096)], None), noise(rows, 4096)
    others = torch.cat([x[:1], 50 * noise(rows - 1, 4096, seed=7)])
    assert torch.equal(linear(x)[0], linear(others)[0])


@pytest.mark.parametrize("rows", [1, 16])
def test_captured(rows: int) -> None:
    linear, x = TritonFp8Linear([made(640, 4096)], None), noise(rows, 4096)
    expected = linear(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = linear(x)
    found.zero_()
    graph.replay()
    assert torch.equal(found, expected)
