"""The text of gate and up of dozens of rows and few columns, on the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from luce.engine.ops.cuda import rows_in, rows_in_trial, rows_products
from luce.engine.ops.cuda.rows_in import CUTS, Cut
from luce.engine.ops.cuda.rows_in_trial import by_definition, serves
from luce.engine.ops.cuda.rows_products import RowsProducts
from luce.engine.ops.triton import probe
from luce.engine.ops.triton.linear import DeviceLinear
from support.cuda_host import HostDevice, matrix_map

TOLERANCE = 5e-3
"""Of the norm: rounding to bfloat16 four times makes 3.9e-3."""


@pytest.fixture
def host(hopper_host: Callable[..., HostDevice]) -> HostDevice:
    """The host in place of a GPU."""
    return hopper_host(rows_in, matrix_map)


def operands(tokens: int, size: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """X and weight."""
    generator = torch.Generator().manual_seed(tokens)
    shapes = (tokens, columns), (size, columns)
    x, weight = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    return x, weight


@pytest.mark.parametrize(
    ("tokens", "columns", "cut", "backwards"),
    [
        (13, 256, Cut(16, 48), True),
        (70, 128, Cut(64, 96), False),
        (130, 640, Cut(128, 96), True),
        (140, 576, Cut(192, 48), False),
    ],
)
def test_against_float64(
    host: HostDevice, tokens: int, columns: int, cut: Cut, backwards: bool
) -> None:
    host.backwards = backwards
    x, weight = operands(tokens, 208, columns)
    expected = by_definition(x, weight)
    assert (rows_in.gate(x, weight, cut) - expected).norm() / expected.norm() < TOLERANCE


def test_a_row_does_not_depend_on_the_others(host: HostDevice) -> None:
    x, weight = operands(40, 96, 192)
    assert torch.equal(rows_in.gate(x, weight)[:9], rows_in.gate(x[:9], weight))


@pytest.mark.parametrize("cut", CUTS.values())
def test_a_cut_fits_the_processor(cut: Cut) -> None:
    assert cut.shared_bytes(1024) <= 227 << 10
    assert cut.stages(1024) >= 7, "much of the matrix is on its way before x is there"


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (torch.zeros(128, 512), "bfloat16"),
        (torch.zeros(512, 128).bfloat16().T, "contiguous"),
        (torch.zeros(128, 1088).bfloat16(), "columns"),
        (torch.zeros(128, 96).bfloat16(), "columns"),
        (torch.zeros(6160, 64).bfloat16(), "6144 rows"),
        (torch.zeros(136, 64).bfloat16(), "multiples of 16"),
    ],
)
def test_other_matrices_are_refused(weight: torch.Tensor, says: str) -> None:
    assert says in (rows_in.refusal(weight) or "")


def test_those_of_a_small_model_are_not() -> None:
    assert rows_in.refusal(torch.zeros(6144, 1024).bfloat16()) is None


@pytest.mark.parametrize("fault", [None, 1.01])
def test_the_trial(monkeypatch: pytest.MonkeyPatch, fault: float | None) -> None:
    def gate(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (by_definition(x, weight) * (fault or 1.0)).bfloat16()

    monkeypatch.setattr(rows_in, "gate", gate)
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(probe, "INTERPRETED", False)
    assert serves(128, torch.device("cpu")) is (fault is None)


class Recording:
    """`RowsProducts` that notes what it is asked for."""

    def __init__(self, answer: torch.Tensor | None) -> None:
        self.asked: list[int] = []
        self._answer = answer

    def adds(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
        return False

    def add(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        raise AssertionError

    def gates(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        return self._answer is not None

    def gate(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(x))
        assert self._answer is not None
        return self._answer


def test_a_linear_leaves_gates_to_it() -> None:
    x, weight = operands(6, 32, 64)
    answer = torch.zeros(6, 16)
    products = Recording(answer)
    assert DeviceLinear(weight, None, products).gated(x) is answer
    assert products.asked == [6]
    assert not DeviceLinear(weight, None, Recording(None)).gates(x)
    assert not DeviceLinear(weight, weight[:, 0], products).gates(x)


@pytest.mark.parametrize(
    ("rows", "columns", "is_for"),
    [(5, 64, True), (256, 64, True), (4, 64, False), (257, 64, False), (8, 96, False)],
)
def test_what_it_is_for(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, is_for: bool
) -> None:
    tried: list[int] = []

    def serves(columns: int, device: torch.device) -> bool:
        tried.append(columns)
        return True

    monkeypatch.setattr(rows_products, "serves", lambda _: True)
    monkeypatch.setattr(rows_in_trial, "serves", serves)
    x, weight = operands(rows, 64, columns)
    assert RowsProducts().gates(x, weight) is is_for
    assert tried == [columns] * is_for
