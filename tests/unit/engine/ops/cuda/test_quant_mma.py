"""The kernel for four-bit codes and few rows, on the host."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.cuda.quant_mma import multiply, refusal
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.quant_planes import QuantPlanes, repack
from luce.testing.quant_blocks import random_blocks
from support.cuda_host import HostDevice


def made(type_name: str, rows: int, columns: int) -> QuantPlanes:
    generator = torch.Generator().manual_seed(rows)
    return repack(type_name, random_blocks(type_name, rows, columns, generator), rows, columns)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q4_K"])
def test_products(host: HostDevice, type_name: str) -> None:
    planes, x = made(type_name, 45, 768), noise(7, 768)
    assert refusal(planes) is None
    wide, residual = torch.full((7, 60), float("nan")).bfloat16(), noise(7, 60, seed=3)
    bias = noise(45, seed=2)
    multiply(planes, x, wide[:, 7:52], bias, residual[:, 7:52])
    expected = x.double() @ decode(planes).double().T + bias.double() + residual[:, 7:52].double()
    assert ((wide[:, 7:52].double() - expected).norm() / expected.norm()).item() < 2e-3
    assert wide[:, :7].isnan().all()
    assert wide[:, 52:].isnan().all()
    again = torch.full_like(wide, float("nan"))
    host.backwards = True
    multiply(planes, x[:5], again[:5, 7:52], bias, residual[:5, 7:52])
    assert torch.equal(again[:5, 7:52], wide[:5, 7:52])


@pytest.mark.parametrize("type_name", ["Q5_K", "Q6_K", "Q8_0", "IQ4_XS"])
def test_refuses_other_types(type_name: str) -> None:
    assert refusal(made(type_name, 4, 512)) == f"made for plain four-bit codes, not {type_name}"
    assert refusal(made("Q4_0", 4, 320)) == "made for columns in whole runs of 256"
