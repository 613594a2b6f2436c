"""Staging of rows of x, on the host: what lies where, and with the norm."""

from __future__ import annotations

import pytest
import torch

from luce.engine.device_kernel import DeviceKernel
from luce.engine.ops.cuda import quant_stage
from luce.engine.ops.cuda.quant_split import prepared
from luce.engine.ops.cuda.quant_stage import (
    TOKEN_BYTES,
    StagedRows,
    stage,
    stage_normed,
    takes_norm,
)
from luce.engine.ops.projection import NormWeight
from support.cuda_host import HostDevice
from support.quant_cases import noise


def numbers_of(rows: StagedRows, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] that staged rows stand for, and the sums of its groups [T, K / 32]."""
    tiles = rows.token_tiles
    count = 8 * tiles
    numbers = rows.image[:, : 512 * count].contiguous().view(torch.float16).double()
    # Of the half of the columns, the eight, the tile, the token, the group of the half.
    numbers = numbers.view(-1, 2, 4, tiles, 8, 4, 8).permute(3, 4, 0, 1, 5, 2, 6)
    rest = rows.image[:, 512 * count :].contiguous()
    back = rest[:, : 4 * count].contiguous().view(torch.float32).double().T.reshape(count, -1)
    parts = rest[:, 4 * count :].contiguous().view(torch.float16).double()
    sums = parts.view(-1, tiles, 8, 8, 2).sum(-1).permute(1, 3, 0, 2).reshape(count, -1, 8)
    x = numbers.reshape(count, columns // 256, 256) * back[:, :, None]
    sums = (sums * back[:, :, None]).reshape(count, -1)
    return x.reshape(count, columns)[: len(rows)], sums[: len(rows)]


@pytest.mark.parametrize(("tokens", "tiles"), [(5, 1), (8, 1), (13, 2), (16, 2)])
def test_numbers_and_sums_are_where_products_look_for_them(
    host: HostDevice, tokens: int, tiles: int
) -> None:
    x = noise(tokens, 1288)[:, 8:]
    x[1] *= 2.0**-100
    x[2, 300] = 1e30
    x[3] = 0
    rows = stage(x, tiles)
    assert rows.image.shape == (5, 8 * tiles * TOKEN_BYTES)
    found, sums = numbers_of(rows, 1280)
    others = [token for token in range(tokens) if token != 2]
    torch.testing.assert_close(found[others], x[others].double(), rtol=0, atol=0)
    torch.testing.assert_close(found[2, :256], x[2, :256].double(), rtol=0, atol=0)
    assert found[2, 300] == x[2, 300].double()
    wanted = found.view(tokens, 40, 32).sum(-1)
    scale = found.view(tokens, 40, 32).abs().sum(-1)
    assert ((sums - wanted).abs() <= 2.0**-20 * scale).all()


@pytest.mark.parametrize("columns", [256, 1280, 5120])
def test_the_norm_comes_first(host: HostDevice, columns: int) -> None:
    x, weight = 30 * noise(11, columns), noise(1, columns, seed=2)[0]
    mean = x.float().square().mean(-1, keepdim=True)
    normal = (x.float() * torch.rsqrt(mean + 1e-6)).bfloat16() * weight
    rows = stage_normed(x, NormWeight(weight, 1e-6), 2)
    found, _ = numbers_of(rows, columns)
    # The mean is added up in another order: a last bit of bfloat16 may differ.
    torch.testing.assert_close(found, normal.double(), rtol=2.0**-6, atol=1e-6)
    assert (found == normal.double()).double().mean() > 0.99


def test_a_norm_is_tried_first(host: HostDevice) -> None:
    x = noise(5, 512)
    weight = noise(1, 512)[0]
    assert takes_norm(x, NormWeight(weight, 1e-6))
    assert not takes_norm(x, NormWeight(weight.float(), 1e-6))
    assert not takes_norm(noise(1, 16640), NormWeight(noise(1, 16640)[0], 1e-6))
    assert not takes_norm(x, NormWeight(noise(1, 513)[0, 1:], 1e-6)), "it begins anywhere"


def test_a_wrong_norm_is_not_used_and_logged(
    host: HostDevice, caplog: pytest.LogCaptureFixture
) -> None:
    right = "total / (float)(num_units * UNIT)"

    def wrong(text: str) -> str:
        assert text.count(right) == 1
        return text.replace(right, "total / (float)num_units")

    host.edit = wrong
    assert not takes_norm(noise(5, 512), NormWeight(noise(1, 512)[0], 1e-6))
    assert caplog.messages[0].startswith("norms do not stage rows: they differ by ")


def test_a_norm_that_cannot_be_built_is_not_used_and_logged(
    host: HostDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = quant_stage._compiled

    def refused(
        name: str, tiles: int, warps: int, units: int, device: torch.device
    ) -> DeviceKernel:
        if name == "quant_stage_norm":
            raise RuntimeError("no such instruction")
        return real(name, tiles, warps, units, device)

    monkeypatch.setattr(quant_stage, "_compiled", refused)
    assert prepared(noise(5, 512), NormWeight(noise(1, 512)[0], 1e-6)) is None
    assert caplog.messages == ["norms do not stage rows: no such instruction"]
    assert prepared(noise(5, 512)) is not None
    monkeypatch.setattr(quant_stage, "_compiled", real)
