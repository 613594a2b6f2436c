"""The text of products of dozens of rows with matrices of few columns, on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from luce.engine.device_kernel import PLAIN_LAUNCH, DeviceKernel, KernelLaunch
from luce.engine.ops.cuda import rows_in, rows_in_trial, rows_products
from luce.engine.ops.cuda.rows_in import CUTS, GATED_CUTS, Cut
from luce.engine.ops.cuda.rows_in_trial import Form, by_definition, serves
from luce.engine.ops.cuda.rows_products import RowsProducts
from luce.engine.ops.triton import probe
from luce.engine.ops.triton.linear import DeviceLinear
from support import cuda_host
from support.cuda_host import COMPILER, HostDevice

HEADER = Path(cuda_host.__file__).with_name("hopper_emulation.hpp")
TOLERANCE = 2.5e-3
"""Of the norm: results, being bfloat16, make 1.7e-3."""


def matrix_map(matrix: torch.Tensor, box: tuple[int, ...]) -> torch.Tensor:
    """What `hopper_emulation.hpp` has in place of the driver's: numbers behind a description."""
    words = torch.zeros(16, dtype=torch.int64)
    words[:7] = torch.tensor([0, 0, 2 * matrix.stride(0), 0, box[0], *matrix.shape])
    return torch.cat((words.view(torch.uint8), torch.from_numpy(cuda_host._bytes(matrix)).clone()))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(HEADER)

    def compiled(
        name: str,
        files: Sequence[str],
        constants: Mapping[str, int],
        launch: KernelLaunch = PLAIN_LAUNCH,
    ) -> DeviceKernel:
        return device.compiled_kernel(name, files[-1:], constants, launch)

    monkeypatch.setattr(rows_in, "compiled_kernel", compiled)
    monkeypatch.setattr(rows_in, "tensor_map", matrix_map)
    rows_in._compiled.cache_clear()
    yield device
    rows_in._compiled.cache_clear()


def operands(tokens: int, size: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """X and weight."""
    generator = torch.Generator().manual_seed(tokens)
    shapes = (tokens, columns), (size, columns)
    x, weight = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    return x, weight


@pytest.mark.parametrize(
    ("tokens", "columns", "cut", "backwards"),
    [
        (13, 256, Cut(64, 32), False),
        (13, 256, Cut(16, 32), True),
        (70, 128, Cut(64, 64), True),
        (130, 640, Cut(128, 96), False),
    ],
)
@pytest.mark.parametrize(("gated", "eps"), [(False, None), (True, 0.3)])
def test_against_float64(
    host: HostDevice,
    tokens: int,
    columns: int,
    cut: Cut,
    backwards: bool,
    gated: bool,
    eps: float | None,
) -> None:
    host.backwards = backwards
    x, weight = operands(tokens, 208, columns)
    expected = by_definition(x, weight, gated=gated, eps=eps)
    found = rows_in.multiply(x, weight, gated=gated, eps=eps, cut=cut)
    assert (found - expected).norm() / expected.norm() < TOLERANCE * (1 + gated)


def test_a_row_does_not_depend_on_the_others(host: HostDevice) -> None:
    x, weight = operands(40, 96, 192)
    many = rows_in.multiply(x, weight, gated=True)
    few = rows_in.multiply(x[:9], weight, gated=True)
    assert torch.equal(many[:9], few)


@pytest.mark.parametrize("cut", [*CUTS.values(), *GATED_CUTS.values()])
def test_a_cut_fits_the_processor(cut: Cut) -> None:
    assert cut.shared_bytes(1024) <= 227 << 10
    assert cut.stages(1024) == 16, "all of the matrix is on its way before x is there"


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (torch.zeros(128, 512), "bfloat16"),
        (torch.zeros(512, 128).bfloat16().T, "contiguous"),
        (torch.zeros(128, 1088).bfloat16(), "columns"),
        (torch.zeros(128, 96).bfloat16(), "columns"),
        (torch.zeros(4256, 64).bfloat16(), "4224 results"),
        (torch.zeros(132, 64).bfloat16(), "multiples of 8"),
    ],
)
def test_other_matrices_are_refused(weight: torch.Tensor, says: str) -> None:
    assert says in (rows_in.refusal(weight, gated=False) or "")


def test_those_of_a_small_model_are_not() -> None:
    assert rows_in.refusal(torch.zeros(4096, 1024).bfloat16(), gated=False) is None
    assert rows_in.refusal(torch.zeros(6144, 1024).bfloat16(), gated=True) is None


@pytest.mark.parametrize("fault", [None, 1.01])
def test_the_trial(monkeypatch: pytest.MonkeyPatch, fault: float | None) -> None:
    def multiply(
        x: torch.Tensor, weight: torch.Tensor, *, gated: bool, eps: float | None
    ) -> torch.Tensor:
        product = by_definition(x, weight, gated=gated, eps=eps)
        return (product * (fault or 1.0)).bfloat16()

    monkeypatch.setattr(rows_in, "multiply", multiply)
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(probe, "INTERPRETED", False)
    form = Form(128, gated=True, normed=False)
    assert serves(form, torch.device("cpu")) is (fault is None)


class Recording:
    """`RowsProducts` that notes what it is asked for."""

    def __init__(self, answer: torch.Tensor | None) -> None:
        self.asked: list[tuple[int, bool, float | None]] = []
        self._answer = answer

    def adds(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> bool:
        return False

    def add(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        raise AssertionError

    def multiply(
        self, x: torch.Tensor, weight: torch.Tensor, *, gated: bool, eps: float | None = None
    ) -> torch.Tensor | None:
        self.asked.append((len(x), gated, eps))
        return self._answer


def test_a_linear_leaves_what_is_for_them_to_such_products() -> None:
    x, weight = operands(6, 32, 64)
    answer = torch.zeros(6, 32)
    products = Recording(answer)
    linear = DeviceLinear(weight, None, products)
    assert linear(x) is answer
    assert linear.gated(x) is answer
    assert products.asked == [(6, False, None), (6, True, None)]
    assert torch.equal(DeviceLinear(weight, None, Recording(None))(x), x @ weight.T)
    biased = DeviceLinear(weight, weight[:, 0].contiguous(), products)
    assert biased.of_rows(x, gated=False) is None
    assert len(products.asked) == 2


@pytest.mark.parametrize(
    ("rows", "columns", "gated", "is_for"),
    [(5, 64, False, True), (64, 64, True, True), (4, 64, False, False), (65, 64, True, False),
     (8, 96, False, False)],
)  # fmt: skip
def test_what_they_are_for(
    monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, gated: bool, is_for: bool
) -> None:
    tried: list[Form] = []

    def serves(form: Form, device: torch.device) -> bool:
        tried.append(form)
        return True

    monkeypatch.setattr(rows_products, "serves", lambda: True)
    monkeypatch.setattr(rows_in_trial, "serves", serves)
    monkeypatch.setattr(rows_in, "multiply", lambda x, *_, **__: x)
    x, weight = operands(rows, 64, columns)
    found = RowsProducts().multiply(x, weight, gated=gated, eps=0.1)
    assert (found is x) is is_for
    assert tried == [Form(columns, gated=gated, normed=True)] * is_for
