"""The text of products of dozens of rows with small matrices, on the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from luce.engine.ops.cuda import rows_split
from luce.engine.ops.cuda.rows_split import CUTS, Cut
from support.cuda_host import HostDevice, matrix_map

TOLERANCE = 2.5e-3
"""Of the norm: results, being bfloat16, make 1.7e-3."""


@pytest.fixture
def host(hopper_host: Callable[..., HostDevice]) -> HostDevice:
    """The host in place of a GPU."""
    return hopper_host(rows_split, matrix_map)


def operands(tokens: int, size: int, columns: int) -> tuple[torch.Tensor, ...]:
    """Residual, x and weight."""
    generator = torch.Generator().manual_seed(tokens)
    shapes = (tokens, size), (tokens, columns), (size, columns)
    return tuple(torch.randn(shape, generator=generator).bfloat16() for shape in shapes)


@pytest.mark.parametrize(
    ("tokens", "columns", "cut", "backwards"),
    [
        (13, 512, Cut(64, 16, 8), False),
        (50, 512, Cut(32, 32, 4, 2), True),
        (135, 3072, Cut(64, 64, 2), False),
    ],
)
def test_against_float64(
    host: HostDevice, tokens: int, columns: int, cut: Cut, backwards: bool
) -> None:
    host.backwards = backwards
    residual, x, weight = operands(tokens, 64, columns)
    expected = residual.double() + x.double() @ weight.double().T
    rows_split.add_product(residual, x, weight, cut)
    assert (residual - expected).norm() / expected.norm() < TOLERANCE


def test_a_row_does_not_depend_on_the_others(host: HostDevice) -> None:
    residual, x, weight = operands(50, 64, 512)
    found = []
    for count, cut in ((50, Cut(16, 48, 2)), (50, Cut(32, 32, 4, 2)), (9, Cut(64, 16, 8))):
        found.append(residual[:count].clone())
        rows_split.add_product(found[-1], x[:count], weight, cut)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0][:9], found[2])


def test_chunks_have_room_beside_the_sums() -> None:
    for cut in CUTS.values():
        for columns in (2048, 3072, 8192):
            assert cut.shared_bytes(columns) <= (228 << 10) // cut.beside - 1024
            assert min(8, columns // (64 * cut.ranks)) <= cut.stages(columns)


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (torch.zeros(128, 512), "bfloat16"),
        (torch.zeros(512, 128).bfloat16().T, "contiguous"),
        (torch.zeros(96, 512).bfloat16(), "64 rows"),
        (torch.zeros(64, 576).bfloat16(), "512 columns"),
    ],
)
def test_other_matrices_are_refused(weight: torch.Tensor, says: str) -> None:
    assert says in (rows_split.refusal(weight) or "")


def test_those_of_a_small_model_are_not() -> None:
    for columns in (2048, 3072):
        assert rows_split.refusal(torch.zeros(1024, columns).bfloat16()) is None
