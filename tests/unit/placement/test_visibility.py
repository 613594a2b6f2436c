"""Indices as a worker has them (B28): the UUID behind an index is what its runtime would pick."""

from __future__ import annotations

import pytest

from luce.placement.visibility import CUDA_VARIABLES, HIP_VARIABLES, visible_order

UUIDS = ["GPU-aa1", "GPU-ab2", "GPU-c3"]


@pytest.mark.parametrize(
    ("text", "order"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("GPU-c3,GPU-aa", [2, 0]),
        ("GPU-a", []),  # two begin so: names neither
        ("1,7,0", [1]),  # ends at the first that names nothing
        ("-1", []),
        ("", []),
        ("0,0", [0]),
    ],
)
def test_cuda(text: str | None, order: list[int]) -> None:
    environment = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert visible_order(UUIDS, CUDA_VARIABLES, environment) == order


def test_the_second_hip_variable_sees_what_the_first_left() -> None:
    environment = {"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}
    assert visible_order(UUIDS, HIP_VARIABLES, environment) == [1]
