"""Quantised kernels against float64 over the values the file stands for."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from luce.engine.ops.projection import NormWeight
from luce.engine.ops.ref.projection import StepwiseGatedProduct, StepwiseProduct
from luce.engine.ops.ref.quant_matmul import lookup as reference_lookup
from luce.engine.ops.triton import probe, quant_linear
from luce.engine.ops.triton.gated_mlp import silu_and_mul
from luce.engine.ops.triton.projection import FusedProduct
from luce.engine.ops.triton.quant_embedding import quant_lookup
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.ops.triton.quant_tilings import (
    DEFAULT_TILINGS,
    QuantTilings,
    TileTiling,
    VectorTiling,
)
from luce.engine.ops.triton.rms_norm import rms_norm
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.loaders.quants import dequantize
from luce.testing.quant_blocks import random_blocks

TYPES = sorted(QUANT_FORMATS)
# Small cuts: vector up to 2 rows, tiles up to 5, decoding to scratch from 6 on.
SMALL = QuantTilings(
    vector={1: VectorTiling(8, 8, 4), 2: VectorTiling(16, 16, 4)},
    tile={5: TileTiling(16, 8, 4, 3, 1)},
    tile_tokens=(16, 16),
    scratch_elements=64 * 1280,
)
VECTOR, TILE, VENDOR = 2, 5, 6
TOLERANCE = {VECTOR: 1e-4, TILE: 1e-4, VENDOR: 1e-4}


def made(type_name: str, rows: int, columns: int, device: torch.device) -> tuple[QuantPlanes, torch.Tensor]:  # fmt: skip  # noqa: E501
    raw = random_blocks(type_name, rows, columns, torch.Generator().manual_seed(rows))
    values = torch.from_numpy(dequantize(type_name, raw.numpy(), (rows, columns)))
    return repack(type_name, raw.to(device), rows, columns), values


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    difference = (found.cpu().double() - expected).norm() / expected.norm()
    return difference.item()


@pytest.mark.parametrize("rows", [VECTOR, TILE, VENDOR])
@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_and_class(device: torch.device, type_name: str, rows: int) -> None:
    columns = 3 * QUANT_FORMATS[type_name].column_multiple
    planes, values = made(type_name, 37, columns, device)
    x = noise(rows, columns)
    found = TritonQuantLinear([planes], None, SMALL)(x.to(device))
    assert error(found, x.double() @ values.double().T) < TOLERANCE[rows]


@pytest.mark.parametrize("rows", [1, 2, 4, 7])
def test_parts_bias_and_residual(device: torch.device, rows: int) -> None:
    (first, first_values), (second, second_values) = (
        made("Q4_K", 40, 768, device),
        made("Q6_K", 23, 768, device),
    )
    bias, residual, x = noise(63, seed=1), noise(rows, 63, seed=2), noise(rows, 768)
    linear = TritonQuantLinear([first, second], bias.to(device), SMALL)
    expected = x.double() @ torch.cat([first_values, second_values]).double().T + bias
    assert error(linear(x.to(device)), expected) < 1e-4
    kept = residual.to(device).clone()
    found = linear.add_to(kept, x.to(device))
    assert found is kept
    assert error(found, expected + residual) < 1e-4
    assert linear.nbytes == first.nbytes + second.nbytes + bias.nbytes
    assert not linear.holds(kept)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_norm_that_leaves_the_words(
    device: torch.device, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As norm and product apart; formats with a table want another order."""
    monkeypatch.setattr(probe, "INTERPRETED", False)
    monkeypatch.setattr(probe, "_known", {})
    parts = [made("Q4_K", 40, 768, device)[0], made("IQ4_XS", 24, 768, device)[0]]
    linear = TritonQuantLinear(parts, None, SMALL)
    norm = NormWeight(noise(768, seed=4).to(device), 1e-5)
    x = (3 * noise(rows, 2 * 768)).to(device)[:, :768]
    stepwise = StepwiseProduct(rms_norm)
    expected = stepwise(x, norm, linear)
    found = FusedProduct(stepwise, gated=False)(x, norm, linear)
    # On a GPU the two norms add their squares in different orders.
    assert error(found, expected.cpu().double()) < (1e-5 if device.type == "cuda" else 1e-12)
    gated = StepwiseGatedProduct(rms_norm, silu_and_mul)
    assert torch.equal(FusedProduct(gated, gated=True)(x, norm, linear), silu_and_mul(found))
    assert list(probe._known.values()) == [None]
    assert linear.normed(x.repeat(TILE, 1), norm) is None


def test_a_norm_that_does_not_start_is_left_out(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(probe, "INTERPRETED", False)
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(quant_linear, "norm_and_quantise", refuse)
    linear = TritonQuantLinear([made("Q8_0", 16, 64, device)[0]], None, SMALL)
    norm, x = NormWeight(noise(64).to(device), 1e-5), noise(1, 64, seed=1).to(device)
    stepwise = StepwiseProduct(rms_norm)
    found = FusedProduct(stepwise, gated=False)(x, norm, linear)
    assert torch.equal(found, stepwise(x, norm, linear))
    assert "a faster way is left out, a kernel does not work here" in caplog.text


def test_wide_tilings_of_small_matrices(device: torch.device) -> None:
    planes, values = made("Q4_K", 24, 1024, device)
    x = noise(1, 1024)
    wide = dataclasses.replace(SMALL, wide_rows=24)
    found = TritonQuantLinear([planes], None, wide)(x.to(device))
    assert error(found, x.double() @ values.double().T) < 1e-4
    # A large matrix, whose programs would quantise the one row many times over: the same words.
    large = TritonQuantLinear([planes], None, dataclasses.replace(wide, quantise_rows=24))
    assert torch.equal(large(x.to(device)), found)


def test_columns_shared_out_give_the_same(device: torch.device) -> None:
    planes, values = made("Q5_K", 20, 1536, device)
    x = noise(3, 1536)
    shared = dataclasses.replace(SMALL, tile={5: TileTiling(16, 8, 4, 3, 8)})
    bias, residual = noise(20, seed=1), noise(3, 20, seed=2)
    linear = TritonQuantLinear([planes], bias.to(device), shared)
    expected = x.double() @ values.double().T + bias
    assert error(linear(x.to(device)), expected) < 1e-4
    assert (
        error(linear.add_to(residual.to(device).clone(), x.to(device)), expected + residual) < 1e-4
    )


@pytest.mark.parametrize("rows", [2, 5])
def test_a_row_does_not_depend_on_the_others(device: torch.device, rows: int) -> None:
    planes, _ = made("Q4_K", 24, 1024, device)
    linear = TritonQuantLinear([planes], None, SMALL)
    x = noise(rows, 1024).to(device)
    others = torch.cat([x[:1], 100 * noise(rows - 1, 1024, seed=9).to(device)])
    assert torch.equal(linear(x)[0], linear(others)[0])


def test_a_row_of_zeros_and_a_wide_range(device: torch.device) -> None:
    planes, values = made("Q8_0", 16, 96, device)
    x = noise(2, 96)
    x[0] = 0
    x[1, :32] *= 1e-20
    x[1, 32:64] *= 1e10
    found = TritonQuantLinear([planes], None, SMALL)(x.to(device))
    assert torch.equal(found[0].cpu(), torch.zeros(16))
    assert error(found[1], x[1].double() @ values.double().T) < 1e-4


def test_half_precision_activations(device: torch.device) -> None:
    planes, values = made("IQ4_XS", 16, 512, device)
    x = noise(1, 512).half()
    found = TritonQuantLinear([planes], None, SMALL)(x.to(device))
    assert found.dtype is torch.float16
    assert error(found, x.double() @ values.double().T) < 2e-3


def test_smallest_powers_of_two(device: torch.device) -> None:
    raw = random_blocks("MXFP4", 8, 32, torch.Generator().manual_seed(3))
    raw.view(-1, 17)[:, 0] = torch.tensor([0, 1, 2, 3, 120, 127, 128, 200], dtype=torch.uint8)
    values = torch.from_numpy(dequantize("MXFP4", raw.numpy(), (8, 32)))
    planes = repack("MXFP4", raw.to(device), 8, 32)
    x = noise(1, 32)
    found = TritonQuantLinear([planes], None, SMALL)(x.to(device))[0].cpu().double()
    expected = (x.double() @ values.double().T)[0]
    torch.testing.assert_close(found[2:], expected[2:], rtol=1e-3, atol=0)


def test_every_number_of_rows_has_a_tiling() -> None:
    for table in (DEFAULT_TILINGS.vector, DEFAULT_TILINGS.tile):
        assert list(table) == sorted(table)
    assert max(DEFAULT_TILINGS.tile) <= max(DEFAULT_TILINGS.tile_tokens)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("type_name", TYPES)
def test_rows_of_a_table(device: torch.device, type_name: str, columns: int) -> None:
    width = columns * QUANT_FORMATS[type_name].column_multiple
    planes, values = made(type_name, 19, width, device)
    ids = torch.tensor([18, 0, 7, 7, 3], dtype=torch.int32, device=device)
    found = quant_lookup(planes, ids, torch.float32)
    assert error(found, values[ids.cpu().long()].double()) < 1e-4
    plain = reference_lookup(planes, ids, torch.float32)
    assert torch.equal(plain.cpu(), values[ids.cpu().long()])
