"""What the driver is told of a tensor, by a driver that notes it."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from luce.engine.tensor_map import encode_tensor_map


class _Driver:
    """Reads a description as the driver does."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.seen: dict[str, Any] = {}

    def cuTensorMapEncodeTiled(
        self, made: Any, kind: int, rank: Any, address: Any, *rest: Any
    ) -> int:
        sizes, strides, box, steps, interleave, swizzle, promotion, fill = rest
        self.seen = {
            "kind": kind,
            "rank": rank.value,
            "address": address.value,
            "lists": [list(each) for each in (sizes, strides, box, steps)],
            "modes": [interleave, swizzle, promotion, fill],
        }
        assert ctypes.addressof(made._obj) % 64 == 0
        made._obj[15] = 7
        return self.status


def test_axes_come_from_the_innermost_on() -> None:
    driver = _Driver()
    cache = torch.zeros(5, 2, 3, 16, 128, dtype=torch.bfloat16).permute(0, 3, 1, 2, 4)
    part = cache[:, :, 1]
    made = encode_tensor_map(driver, part, (1, 16, 1, 64))  # type: ignore[arg-type]
    assert made[15] == 7
    assert ctypes.sizeof(made) == 128
    assert driver.seen == {
        "kind": 9,
        "rank": 4,
        "address": part.data_ptr(),
        "lists": [
            [128, 3, 16, 5],
            [16 * 128 * 2, 128 * 2, 2 * 3 * 16 * 128 * 2],
            [64, 1, 16, 1],
            [1, 1, 1, 1],
        ],
        "modes": [0, 3, 3, 0],
    }


def test_what_the_driver_does_not_take_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="could not be described for copies: CUDA error 1"):
        encode_tensor_map(_Driver(1), torch.zeros(2, 64).half(), (1, 64))  # type: ignore[arg-type]
