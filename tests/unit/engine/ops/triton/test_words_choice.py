"""Products of words: the faster kernel is tried against the other before it is taken."""

from __future__ import annotations

import pytest
import torch

from luce.engine.device_kernel import KernelLimits
from luce.engine.ops.cuda import words_product
from luce.engine.ops.triton import probe, words_choice
from luce.engine.ops.triton.quant_part import QuantPart
from luce.engine.quant_planes import QuantPlanes, repack
from luce.testing.quant_blocks import random_blocks

WORDS = torch.zeros(1, 19, 8, dtype=torch.int32)


def product(x: torch.Tensor, out: torch.Tensor, residual: torch.Tensor) -> None:
    """The other kernel."""
    assert x is out is residual
    out += 3.0


def limits(processors: int) -> KernelLimits:
    return KernelLimits(processors, 0, 0)


@pytest.fixture
def part() -> QuantPart:
    raw = random_blocks("Q4_K", 16, 256, torch.Generator().manual_seed(1))
    return QuantPart.of(repack("Q4_K", raw, 16, 256), 0)


@pytest.mark.parametrize(
    ("given", "factor", "processors", "tries", "calls"),
    [(3.0, 1.0, 1, 1, 3), (3.0, 1.1, 1, 1, 1), (3.0, 1.0, 0, 0, 0), (0.0, 1.0, 1, 1, 3)],
)
def test_it_is_taken_if_it_is_right(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: QuantPart,
    given: float,
    factor: float,
    processors: int,
    tries: int,
    calls: int,
) -> None:
    """And if every block of threads finds a multiprocessor; words of nothing prove nothing."""
    seen = []

    def otherwise(x: torch.Tensor, out: torch.Tensor, residual: torch.Tensor) -> None:
        assert x is out is residual
        out += given

    def add(planes: QuantPlanes, x: words_product.Words, out: torch.Tensor) -> None:
        seen.append(planes)
        out += given * factor

    monkeypatch.setattr(words_choice, "kernel_refusal", lambda: None)
    monkeypatch.setattr(words_choice, "kernel_limits", lambda _: limits(processors))
    monkeypatch.setattr(words_product, "refusal", lambda *_: None)
    monkeypatch.setattr(words_product, "add", add)
    monkeypatch.setattr(probe, "INTERPRETED", False)
    monkeypatch.setattr(probe, "_known", {})
    residual = torch.ones(1, 16)
    for _ in range(2):
        words_choice.add_words(part, WORDS, residual, otherwise, has_bias=False)
    assert torch.equal(residual, torch.full((1, 16), 1 + 2 * given))
    # The trial's, and one for each product.
    assert len(seen) == calls
    assert len(probe._known) == tries
    assert ("a product of words is 1.0e-01 off" in caplog.text) == (factor > 1.0)


def test_without_a_gpu_it_is_the_other(part: QuantPart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_choice, "kernel_refusal", lambda: "no GPU")
    residual = torch.ones(1, 16)
    words_choice.add_words(part, WORDS, residual, product, has_bias=False)
    assert torch.equal(residual, torch.full((1, 16), 4.0))
