"""Names of devices."""

from __future__ import annotations

import pytest

from luce.config.device import DeviceName, check_target, parse_device
from luce.config.option import BadValue


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", DeviceName("cpu", 0)),
        ("cpu:0", DeviceName("cpu", 0)),
        ("cpu:12", DeviceName("cpu", 12)),
        ("cuda:0", DeviceName("cuda", 0)),
        ("cuda:007", DeviceName("cuda", 7)),
        ("hip:999", DeviceName("hip", 999)),
    ],
)
def test_devices(text: str, device: DeviceName) -> None:
    assert parse_device(text) == device


@pytest.mark.parametrize("text", ["cpu", "cpu:0"])
def test_one_name_whichever_way_it_was_written(text: str) -> None:
    assert str(parse_device(text)) == "cpu:0"


@pytest.mark.parametrize(
    "text",
    ["", "gpu:0", "cuda", "hip", "cuda:", "cpu:", "cuda:-1", "cuda:0,cuda:1", "CPU:0", "cuda:0 ",
     "cuda:٣", "cuda:0\n", ":0", "0", "cuda:x"],
)  # fmt: skip
def test_no_devices(text: str) -> None:
    with pytest.raises(BadValue, match="is none of cpu, cpu:N, cuda:N, hip:N"):
        parse_device(text)


@pytest.mark.parametrize("text", ["auto", "auto:0"])
def test_auto_names_no_device(text: str) -> None:
    with pytest.raises(BadValue, match=f"'{text}' names no device; name one: cpu"):
        parse_device(text)


@pytest.mark.parametrize("text", ["cuda:1000", "cpu:2147483648", "hip:" + "9" * 5000])
def test_an_index_that_overflows(text: str) -> None:
    with pytest.raises(BadValue, match="0 to 999") as raised:
        parse_device(text)
    assert len(str(raised.value)) < 80


@pytest.mark.parametrize("text", ["auto", "cpu", "cpu:3", "hip:0"])
def test_targets(text: str) -> None:
    check_target(text)


@pytest.mark.parametrize("text", ["auto:0", "Auto", "", "gpu:0"])
def test_no_targets(text: str) -> None:
    with pytest.raises(BadValue):
        check_target(text)
