"""Declared memory of devices."""

from __future__ import annotations

import pytest

from luce.config.check import check_routing
from luce.config.device_memory import DeviceMemory
from luce.config.option import BadValue
from luce.config.routing import RoutingConfig
from luce.errors import UsageError


@pytest.mark.parametrize(
    ("text", "device", "nbytes"),
    [
        ("cpu:0=1GiB", "cpu:0", 1 << 30),
        ("cpu=512MiB", "cpu:0", 512 << 20),
        ("cuda:01=7", "cuda:1", 7),
    ],
)
def test_good(text: str, device: str, nbytes: int) -> None:
    assert DeviceMemory.parse(text) == DeviceMemory(device, nbytes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1GiB", "write DEVICE=SIZE, as cpu:0=1GiB"),
        ("cpu:0", "write DEVICE=SIZE"),
        ("gpu:0=1GiB", "'gpu:0' is none of cpu"),
        ("auto=1GiB", "'auto' names no device"),
        ("cpu:0=", "'' is no size"),
        ("cpu:0=-1GiB", "'-1GiB' is no size"),
        ("cpu:0=lots", "'lots' is no size; write one as 512MiB"),
        ("cpu:0=0", "'cpu:0=0': the size is 0"),
    ],
)
def test_bad(text: str, problem: str) -> None:
    with pytest.raises(BadValue) as raised:
        DeviceMemory.parse(text)
    assert problem in str(raised.value)


def test_one_budget_a_device() -> None:
    both = RoutingConfig(device_memory=("cpu:0=1GiB", "cuda:0=2GiB"))
    check_routing(both)
    assert both.memory_budgets == {"cpu:0": 1 << 30, "cuda:0": 2 << 30}
    with pytest.raises(UsageError, match="--device-memory names a device twice: cpu=1GiB, cpu:0"):
        check_routing(RoutingConfig(device_memory=("cpu=1GiB", "cpu:0=2GiB")))
