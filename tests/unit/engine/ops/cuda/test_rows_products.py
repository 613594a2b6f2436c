"""Which products of dozens of rows are our own: by shape, by device, and by a trial."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from luce.engine.ops.attention import HeadShape
from luce.engine.ops.cuda import (
    decode_attention,
    quant_split,
    quant_stage,
    rows_in,
    rows_products,
    rows_split,
)
from luce.engine.ops.cuda.rows_products import RowsProducts
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.ops.triton.probe import TrialError
from luce.loaders.quant_formats import QUANT_FORMATS

CPU = torch.device("cpu")


def multiply(residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """What the kernel does, each row for itself."""
    for row, vector in zip(residual, x.double(), strict=True):
        row.copy_(row.double() + weight.double() @ vector)


def operands(tokens: int, size: int, columns: int) -> tuple[torch.Tensor, ...]:
    """Residual, x and weight."""
    shapes = (tokens, size), (tokens, columns), (size, columns)
    return tuple(torch.ones(shape).bfloat16() for shape in shapes)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that takes the kernel."""
    monkeypatch.setattr(rows_split, "add_product", multiply)
    monkeypatch.setattr(rows_products, "serves", lambda _: True)


@pytest.mark.usefixtures("kernel")
def test_a_right_kernel_passes_its_trial() -> None:
    rows_products._try_adding(512, CPU)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("most", "scale", "says"), [(64, 1.1, "61 rows are"), (256, 1.002, "other bits among 253")]
)
def test_a_wrong_one_does_not(
    monkeypatch: pytest.MonkeyPatch, most: int, scale: float, says: str
) -> None:
    def wrong(residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        multiply(residual, x * (scale if len(x) == most - 3 else 1), weight)

    monkeypatch.setattr(rows_split, "add_product", wrong)
    with pytest.raises(TrialError, match=says):
        rows_products._try_adding(512, CPU)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("tokens", "size", "columns", "served"),
    [
        (5, 1024, 2048, True),
        (256, 1024, 3072, True),
        (4, 1024, 2048, False),
        (257, 1024, 2048, False),
        (16, 4096, 2048, False),
        (16, 1024, 2080, False),
    ],
)
def test_small_matrices_and_dozens_of_rows(
    tokens: int, size: int, columns: int, served: bool
) -> None:
    assert RowsProducts().adds(*operands(tokens, size, columns)) == served


def test_not_without_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    rows_products.serves.cache_clear()
    with caplog.at_level("INFO"):
        assert not RowsProducts().adds(*operands(16, 1024, 2048))
    rows_products.serves.cache_clear()
    assert "the vendor's" in caplog.text


@pytest.mark.parametrize(
    ("module", "facts"),
    [
        (rows_split, (rows_split.CUTS[16], 512)),
        (rows_in, (rows_in.CUTS[16], 512)),
        (decode_attention, (decode_attention.Geometry(HeadShape(2, 2, 64), 16),)),
        (quant_stage, ("quant_stage", 1, 4, 1)),
        (quant_split, (QUANT_FORMATS["Q4_K"], quant_split.tiling_of(8), 2, 1024)),
    ],
    ids=lambda each: each.__name__.rpartition(".")[2] if isinstance(each, ModuleType) else "",
)
def test_each_device_has_its_own_kernel(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, facts: tuple[object, ...]
) -> None:
    monkeypatch.setattr(module, "compiled_kernel", lambda *_: object())
    module._compiled.cache_clear()
    first, second = (module._compiled(*facts, torch.device("cuda", each)) for each in (0, 1))
    assert first is not second
    assert module._compiled(*facts, torch.device("cuda", 0)) is first
    module._compiled.cache_clear()


def test_each_device_is_asked_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter(["made for others", None])
    monkeypatch.setattr(rows_products, "kernel_refusal", lambda **_: next(reasons))
    rows_products.serves.cache_clear()
    served = [rows_products.serves(torch.device("cuda", each)) for each in (0, 1, 0)]
    rows_products.serves.cache_clear()
    assert served == [False, True, False]


@pytest.mark.usefixtures("kernel")
def test_a_matrix_adds_its_product_so() -> None:
    residual, x, weight = operands(16, 64, 512)
    weight = weight / 8
    found = DeviceLinear(weight, None, RowsProducts()).add_to(residual.zero_(), x)
    assert found is residual
    assert found.tolist() == [[64.0] * 64] * 16
    biased = DeviceLinear(weight, weight.new_full((64,), 2), RowsProducts()).add_to(residual, x)
    assert biased.tolist() == [[130.0] * 64] * 16
