"""Words of states times a matrix of Q4_K in CUDA C++, its own text on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda import words_product
from luce.engine.ops.triton.norm_quantise import PartWords
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quants import dequantize
from luce.testing.quant_blocks import random_blocks
from support.cuda_host import _HEADER, COMPILER, HostDevice

ROWS, COLUMNS, HEADS, EPS = 32, 1024, 4, 1e-6


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(Path(_HEADER).with_name("words_product_emulation.hpp"))

    def compiled(
        name: str, files: Sequence[str], constants: Mapping[str, int], launch: KernelLaunch
    ) -> DeviceKernel:
        return device.compiled_kernel(name, files[-1:], constants, launch)

    monkeypatch.setattr(words_product, "compiled_kernel", compiled)
    words_product._compiled.cache_clear()
    yield device
    words_product._compiled.cache_clear()


def words_of(x: torch.Tensor) -> PartWords:
    """Rows as a state's kernel leaves them: words in the plain order, with sums of squares."""
    tokens = len(x)
    parts = x.view(tokens, COLUMNS // 32, 2, 16)
    scales = parts.abs().amax(3, keepdim=True) / 32767
    codes = (parts / scales).round().int()
    # Of column 4a + 2b + c of eight: words are (b, c), halves a.
    low, high = codes.view(tokens, COLUMNS // 32, 4, 2, 4).unbind(3)
    words = (low & 0xFFFF | high << 16).flatten(2).transpose(1, 2)
    rest = scales.squeeze(3).view(torch.int32), codes.sum(3, dtype=torch.int32)
    squares = x.square().view(tokens, HEADS, -1, 16).sum(3)
    return PartWords(
        torch.cat([words, *(each.transpose(1, 2) for each in rest)], 1).contiguous(), squares, EPS
    )


def planes_of(kind: str = "Q4_K", rows: int = ROWS) -> tuple[QuantPlanes, torch.Tensor]:
    raw = random_blocks(kind, rows, COLUMNS, torch.Generator().manual_seed(2))
    weight = torch.from_numpy(dequantize(kind, raw.numpy(), (rows, COLUMNS)))
    return repack(kind, raw, rows, COLUMNS), weight


def test_rows_of_words(host: HostDevice) -> None:
    """Three rows, each by itself the same bits, added to what is there."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, COLUMNS, generator=generator)
    old = torch.randn(3, 2 * ROWS, generator=generator).bfloat16()
    planes, weight = planes_of()
    words, found = words_of(x), old.clone()
    out = found[:, ROWS:]
    assert words_product.refusal(planes, out, words) is None
    words_product.add(planes, words, out)
    mean = x.view(3, HEADS, -1).square().mean(2, keepdim=True)
    normal = (x.view(3, HEADS, -1) * (mean + EPS).rsqrt()).flatten(1)
    product = normal @ weight.T
    expected = product + old[:, ROWS:].float()
    assert float((out.float() - expected).norm() / product.norm()) < 4e-3
    assert torch.equal(found[:, :ROWS], old[:, :ROWS])
    alone = old[2:, ROWS:].clone()
    last = PartWords(words.words[2:].clone(), words.squares[2:].clone(), EPS)
    words_product.add(planes, last, alone)
    assert torch.equal(alone, out[2:])


def test_rows_of_words_of_whole_groups(host: HostDevice) -> None:
    x = torch.randn(2, COLUMNS, generator=torch.Generator().manual_seed(1))
    planes, weight = planes_of()
    scale = x.view(2, -1, 32).abs().amax(2) / 32767
    words = words_of(x / scale.repeat_interleave(32, 1)).words
    # Parts of whole numbers whose largest is not 32767 are others: make all of them anew.
    codes = (x.view(2, -1, 32) / scale[..., None]).round().int()
    low, high = codes.view(2, -1, 4, 2, 4).unbind(3)
    words[:, :16] = (low & 0xFFFF | high << 16).flatten(2).transpose(1, 2)
    words[:, 16] = scale.view(torch.int32)
    words[:, 17:19] = codes.view(2, -1, 2, 16).sum(3, dtype=torch.int32).transpose(1, 2)
    out = torch.zeros(2, ROWS, dtype=torch.bfloat16)
    whole = words[:, :19].contiguous()
    assert words_product.refusal(planes, out, whole) is None
    words_product.add(planes, whole, out)
    expected = x @ weight.T
    assert float((out.float() - expected).norm() / expected.norm()) < 4e-3


def test_what_it_is_not_made_for() -> None:
    words, out = words_of(torch.randn(1, COLUMNS)), torch.zeros(1, ROWS, dtype=torch.bfloat16)
    planes, _ = planes_of()
    assert words_product.refusal(planes, out, words) is None
    assert words_product.refusal(planes, out.float(), words) is not None
    assert words_product.refusal(planes_of("Q5_K")[0], out, words) is not None
    assert words_product.refusal(planes_of(rows=8)[0], out, words) is not None
    assert words_product.refusal(replace(planes, columns=32 * 48), out, words) is not None
    whole = PartWords(words.words[:, :19], words.squares, EPS)
    assert words_product.refusal(planes, out, whole) is not None
