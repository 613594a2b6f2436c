"""The holding kernel's own text, on the host: every type, its cuts and its independence."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch

from luce.engine.device_kernel import EarlyKernel, KernelLimits
from luce.engine.ops.cuda import quant_held
from luce.engine.ops.cuda.quant_held import Cut, multiply, multiply_by, refusal
from luce.engine.ops.cuda.quant_split import prepared
from luce.engine.quant_planes import QuantPlanes
from luce.loaders.quant_formats import QUANT_FORMATS
from support.cuda_host import HostDevice
from support.quant_cases import error, errors_with, exact, made, noise

TYPES = sorted(set(QUANT_FORMATS) - {"Q2_K", "Q3_K", "MXFP4", "IQ4_XS"})
TOLERANCE = 2e-3
"""Results are bfloat16, which makes 1.7e-3 of it."""
HOPPER = KernelLimits(132, 227 << 10, 228 << 10)


def product(planes: QuantPlanes, x: torch.Tensor) -> torch.Tensor:
    out = x.new_full((len(x), planes.rows), float("nan"))
    multiply(planes, x, out, None, None)
    return out


@pytest.mark.parametrize("type_name", TYPES)
def test_products(host: HostDevice, type_name: str) -> None:
    planes, x = made(type_name, 72, 256), noise(11, 304)[:, :256]
    assert refusal(planes) is None
    wide = torch.full((11, 88), float("nan")).bfloat16()
    bias, residual = noise(72, seed=2), noise(11, 88, seed=3)
    multiply(planes, x, wide[:, 7:79], bias, residual[:, 7:79])
    expected = exact(planes, x) + bias.double() + residual[:, 7:79].double()
    assert error(wide[:, 7:79], expected) < TOLERANCE
    assert wide[:, :7].isnan().all()
    assert wide[:, 79:].isnan().all()


def test_adds_in_place(host: HostDevice) -> None:
    planes, x, residual = made("Q4_K", 40, 512), noise(5, 512), noise(5, 40, seed=3)
    wanted = residual.double() + exact(planes, x)
    multiply(planes, x, residual, None, residual)
    assert error(residual, wanted) < TOLERANCE


@pytest.mark.parametrize("factor", [2.0**-100, 1e4, 2.0**100])
def test_x_may_be_of_any_size(host: HostDevice, factor: float) -> None:
    planes, x = made("Q4_K", 40, 512), noise(3, 512)
    x[1] *= factor
    x[2, 7] = 1e30
    assert error(product(planes, x)[1], exact(planes, x[1])) < 3e-3
    assert error(product(planes, x), exact(planes, x)) < TOLERANCE


@pytest.mark.parametrize(
    "cut", [Cut(3, 1, 2, 2, 2), Cut(3, 4, 1, 1, 2)], ids=["two tiles", "rows of their own"]
)
def test_each_cut_gives_the_sums_whatever_the_number_of_rows(host: HostDevice, cut: Cut) -> None:
    """The ring goes round more than once."""
    planes, x = made("Q4_K", 104, 768), noise(13, 768)

    def found(x: torch.Tensor) -> torch.Tensor:
        out = x.new_full((len(x), planes.rows), float("nan"))
        multiply_by(cut, planes, x, out)
        return out

    together = found(x)
    assert error(together, exact(planes, x)) < TOLERANCE
    others = torch.cat([x[:6], 50 * noise(1, 768, seed=4)])
    assert torch.equal(found(others)[:-1], together[:6])
    host.backwards = True
    assert torch.equal(found(x), together)


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("        wait_for(room.full + stage, index / STAGES % 2);\n", ""),
        ("            wait_for(room.emptied + index % STAGES, (index / STAGES + 1) % 2);\n", ";\n"),
        ("        wait_for(room.summed + adder, index / DEPTH % 2);\n", ""),
    ],
    ids=["weights not there", "weights still needed", "sums not there"],
)
def test_what_is_wrong_is_seen(host: HostDevice, correct: str, wrong: str) -> None:
    planes, x, cut = made("Q4_K", 56, 512), noise(13, 512), Cut(2, 1, 1, 1, 2)
    expected, rows = exact(planes, x), prepared(x)

    def found() -> torch.Tensor:
        out = x.new_full((len(x), planes.rows), float("nan"))
        multiply_by(cut, planes, rows, out)
        return out

    errors = errors_with(host, correct, wrong, found, expected)
    assert not all(each < TOLERANCE for each in errors)


def test_refuses_what_it_does_not_know(host: HostDevice) -> None:
    for type_name in ("Q2_K", "Q3_K", "MXFP4", "IQ4_XS"):
        assert refusal(made(type_name, 8, 512)) == f"not made for {type_name}"
    what = "made for columns in whole blocks of 256 and rows in eights"
    assert refusal(made("Q4_0", 8, 192)) == what
    planes = made("Q4_0", 8, 256)
    assert refusal(replace(planes, rows=7)) == what
    assert refusal(replace(planes, columns=5376)) == "there are no warps for 5376 columns"


@pytest.mark.parametrize(
    ("rows", "columns", "cut", "registers"),
    [
        (16480, 5120, Cut(20, 1, 2, 132, 3), 88),
        (6144, 4096, Cut(16, 1, 2, 132, 3), 112),
        (12352, 2048, Cut(8, 2, 2, 132, 3), 112),
        (64, 256, Cut(1, 4, 2, 1, 1), 0),
    ],
)
def test_the_cut_of_a_matrix(rows: int, columns: int, cut: Cut, registers: int) -> None:
    form = QUANT_FORMATS["Q4_K"]
    assert quant_held._cut(form, rows, columns, HOPPER) == cut
    assert cut.registers == registers
    assert cut.nbytes(form, 16) <= HOPPER.shared_bytes
    few, trial_rows = cut.for_trial()
    assert few.blocks == 2
    assert trial_rows <= 512


@pytest.mark.parametrize(("registers", "is_refused"), [(96, False), (88, True)])
def test_warps_never_wait_for_registers_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch, registers: int, is_refused: bool
) -> None:
    class Driver:
        def cuFuncGetAttribute(self, found: Any, asked: object, function: object) -> int:
            found._obj.value = registers
            return 0

    driver: Any = Driver()
    kernel = EarlyKernel(driver, ctypes.c_void_p(1), lambda: 0, 0)
    monkeypatch.setattr(quant_held, "compiled_kernel", lambda *_: kernel)
    form, place = QUANT_FORMATS["Q6_K"], torch.device("cuda", registers)
    cut = quant_held._cut(form, 151936, 4096, HOPPER)
    if is_refused:
        with pytest.raises(RuntimeError, match="its warps share 1760 registers a lane"):
            quant_held._compiled(form, cut, 2, place)
    else:
        assert quant_held._compiled(form, cut, 2, place) is kernel
