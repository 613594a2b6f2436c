"""The reference of quantised products, and what every implementation checks of its parts."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.quant_matmul import check_parts
from luce.engine.ops.ref.quant_matmul import decode, linear
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quants import dequantize
from luce.testing.quant_blocks import random_blocks


def made(type_name: str, rows: int, columns: int = 256) -> tuple[QuantPlanes, torch.Tensor]:
    """Planes, and the values they stand for."""
    raw = random_blocks(type_name, rows, columns, torch.Generator().manual_seed(rows))
    values = dequantize(type_name, raw.numpy(), (rows, columns))
    return repack(type_name, raw, rows, columns), torch.from_numpy(values)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
def test_parts_of_several_types(has_bias: bool, rows: int) -> None:
    (first, first_values), (second, second_values) = made("Q4_K", 7), made("Q6_K", 4)
    bias = noise(11, seed=1) if has_bias else None
    product = linear([first, second], bias)
    x, residual = noise(rows, 256), noise(rows, 11, seed=2)
    expected = x.double() @ torch.cat([first_values, second_values]).double().T
    if bias is not None:
        expected = expected + bias
    torch.testing.assert_close(product(x).double(), expected, rtol=1e-5, atol=1e-5)
    found = product.add_to(residual, x).double()
    torch.testing.assert_close(found, expected + residual, rtol=1e-5, atol=1e-5)


def test_results_have_the_type_of_the_activations() -> None:
    planes, _ = made("Q8_0", 4)
    product = linear([planes], None)
    assert product(noise(2, 256).bfloat16()).dtype is torch.bfloat16
    assert product.add_to(noise(2, 4).half(), noise(2, 256).half()).dtype is torch.float16


def test_memory_counts_planes_and_bias() -> None:
    planes, _ = made("Q4_0", 8)
    assert linear([planes], None).nbytes == planes.nbytes == 8 * 256 * 18 // 32
    assert linear([planes], noise(8)).nbytes == planes.nbytes + 32
    assert not linear([planes], None).holds(decode(planes))


def test_parts_must_have_one_width() -> None:
    narrow, wide = made("Q4_0", 2, 256)[0], made("Q4_0", 2, 512)[0]
    with pytest.raises(AssertionError):
        check_parts([narrow, wide], None)


def test_bias_must_fit() -> None:
    with pytest.raises(AssertionError, match="bias"):
        check_parts([made("Q4_0", 2)[0]], noise(3))


def test_there_must_be_a_part() -> None:
    with pytest.raises(AssertionError, match="no matrix"):
        check_parts([], None)
