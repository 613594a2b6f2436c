"""Products of words in CUDA C++, their own text on the host, against float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda import words_product
from luce.engine.ops.ref.quant_matmul import decode
from support.cuda_host import _HEADER, COMPILER, HostDevice
from support.quant_cases import error, made, noise

TOLERANCE = 2.5e-3
"""Results are bfloat16, which makes 1.7e-3 of it."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(Path(_HEADER).with_name("moe_words_emulation.hpp"))

    def compiled(
        name: str, files: Sequence[str], constants: Mapping[str, int], launch: KernelLaunch
    ) -> DeviceKernel:
        own = [each for each in files if each not in words_product.PRIMITIVES]
        return device.compiled_kernel(name, own, constants, launch)

    monkeypatch.setattr(words_product, "compiled_kernel", compiled)
    words_product._compiled.cache_clear()
    yield device
    words_product._compiled.cache_clear()


def words_of(x: torch.Tensor, parts: int) -> torch.Tensor:
    """Rows as `norm_quantise` leaves them, in the plain order; each part with a scale of its own."""
    groups = x.float().view(len(x), -1, parts, 32 // parts)
    largest = groups.abs().amax(3, keepdim=True)
    codes = (groups * (32767.0 / largest)).round().to(torch.int32)
    eights = codes.flatten(2).view(*codes.shape[:2], 4, 2, 4)
    packed = ((eights[..., 0, :] & 0xFFFF) | (eights[..., 1, :] << 16)).flatten(2)
    scales = (largest[..., 0] / 32767.0).view(torch.int32)
    sums = codes.view(*codes.shape[:2], max(2, parts), -1).sum(3).to(torch.int32)
    return torch.cat([packed, scales, sums], 2).transpose(1, 2).contiguous()


@pytest.mark.parametrize(("rows", "columns"), [(40, 1024), (4100, 2048)])
def test_products(
    host: HostDevice, monkeypatch: pytest.MonkeyPatch, rows: int, columns: int
) -> None:
    """Of words of a norm; more steps than are asked for ahead; a row depends on no other."""
    if rows == 40:
        monkeypatch.setattr(words_product, "_ROWS", ((0, 8),))
        columns *= 5
    planes, x = made("Q4_K", rows, columns), noise(2, columns)
    assert words_product.refusal(planes) is None
    y = torch.zeros(2, rows + 3, dtype=torch.bfloat16)
    words = words_of(x, 1)
    words_product.multiply(planes, words, None, y, adds=False)
    assert not y[:, rows:].any()
    assert error(y[:, :rows], x.double() @ decode(planes).double().T) < TOLERANCE
    alone = torch.zeros(1, rows, dtype=torch.bfloat16)
    words_product.multiply(planes, words[1:].contiguous(), None, alone, adds=False)
    assert torch.equal(alone, y[1:, :rows])


def test_products_of_heads(host: HostDevice) -> None:
    """Divided by their root mean squares, and added."""
    planes, x = made("Q4_K", 10, 2048), noise(2, 2048)
    heads = x.float().view(2, 16, 128)
    squares = heads.square().view(2, 16, 8, 16).sum(3)
    y = noise(2, 10, seed=3) * 8
    normal = heads * (heads.square().mean(2, keepdim=True) + 1e-6).rsqrt()
    expected = y.double() + normal.flatten(1).double() @ decode(planes).double().T
    words_product.multiply(planes, words_of(x, 2), (squares, 1e-6), y, adds=True)
    assert error(y, expected) < TOLERANCE


def test_what_it_is_not_made_for() -> None:
    assert words_product.refusal(made("Q6_K", 8, 1024)) is not None
    assert words_product.refusal(made("Q4_K", 8, 512)) is not None
    assert words_product.refusal(made("Q4_K", 9, 1024)) is not None
