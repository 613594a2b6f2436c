"""What the driver is asked for, by a driver that notes it."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import pytest
import torch

from luce.engine.device_kernel import EarlyKernel, LaunchAttribute, LaunchConfig


class _Driver:
    """Reads a launch as the driver does."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.seen: list[Any] = []

    def cuLaunchKernelEx(self, config: Any, function: object, pointers: Any, extra: object) -> int:
        given = config._obj
        attribute = given.attributes[0]
        address = ctypes.cast(pointers[0], ctypes.POINTER(ctypes.c_void_p))[0]
        number = ctypes.cast(pointers[1], ctypes.POINTER(ctypes.c_int))[0]
        sizes = [*given.grid, *given.block, given.shared_bytes, given.stream]
        self.seen = [sizes, given.num_attributes, attribute.id, attribute.value]
        self.seen += [function, address, number, extra]
        return self.status


def test_the_driver_is_told_that_it_may_start_early() -> None:
    driver, tensor, function = _Driver(), torch.zeros(3), ctypes.c_void_p(5)
    kernel = EarlyKernel(driver, function, lambda: 77, 99_000)  # type: ignore[arg-type]
    kernel((132, 1, 2), (256, 1, 1), [tensor, -4])
    sizes = [132, 1, 2, 256, 1, 1, 99_000, 77]
    assert driver.seen == [sizes, 1, 6, 1, function, tensor.data_ptr(), -4, None]


def test_what_the_driver_does_not_take_is_an_error() -> None:
    kernel = EarlyKernel(_Driver(1), ctypes.c_void_p(5), lambda: 0, 0)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="could not be launched: CUDA error 1"):
        kernel((1, 1, 1), (32, 1, 1), [torch.zeros(1), 2])


@pytest.mark.parametrize("status", [0, 1])
def test_shared_memory_may_have_a_share(status: int) -> None:
    asked = []

    def ask(function: ctypes.c_void_p, attribute: ctypes.c_int, value: ctypes.c_int) -> int:
        asked.append((function.value, attribute.value, value.value))
        return status

    driver: Any = _Driver()
    driver.cuFuncSetAttribute = ask
    make = partial(EarlyKernel, driver, ctypes.c_void_p(5), lambda: 0, 0)
    make()
    assert asked == []
    if status:
        with pytest.raises(RuntimeError, match="CUDA error 1"):
            make(50)
    else:
        make(50)
    assert asked == [(5, 9, 50)]


@pytest.mark.parametrize("number", [1 << 31, -(1 << 31) - 1])
def test_numbers_are_not_cut(number: int) -> None:
    driver = _Driver()
    kernel = EarlyKernel(driver, ctypes.c_void_p(5), lambda: 0, 0)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="no number as large"):
        kernel((1, 1, 1), (32, 1, 1), [torch.zeros(1), number])
    assert driver.seen == []


def test_structures_lie_as_in_the_drivers_header() -> None:
    assert ctypes.sizeof(LaunchAttribute) == 72
    assert LaunchAttribute.value.offset == 8
    assert ctypes.sizeof(LaunchConfig) == 56
    assert LaunchConfig.stream.offset == 32
    assert LaunchConfig.attributes.offset == 40


@pytest.mark.parametrize("status", [0, 1])
def test_the_driver_knows_registers(status: int) -> None:
    def tell(found: Any, attribute: ctypes.c_int, function: ctypes.c_void_p) -> int:
        assert (attribute.value, function.value) == (4, 5)
        found._obj.value = 96
        return status

    driver: Any = _Driver()
    driver.cuFuncGetAttribute = tell
    kernel = EarlyKernel(driver, ctypes.c_void_p(5), lambda: 0, 0)
    if status:
        with pytest.raises(RuntimeError, match="registers of a kernel are not known"):
            kernel.registers()
    else:
        assert kernel.registers() == 96
