"""`--target-device auto`, rule by rule."""

from __future__ import annotations

import pytest

from luce.placement.choice import Candidate, choose_device
from luce.placement.devices import Device

GIB = 1 << 30


def device(device_id: str, *, unified: bool = False, busy: int = 0) -> Device:
    backend = device_id.partition(":")[0]
    return Device(
        id=device_id,
        uuid=device_id,
        backend=backend,  # type: ignore[arg-type]
        name="x",
        total_bytes=64 * GIB,
        is_unified=unified or backend == "cpu",
        num_foreign_processes=busy,
    )


def candidate(
    device_id: str, free: int | None, *, need: int = 10, unified: bool = False, busy: int = 0
) -> Candidate:
    """Sizes in GiB."""
    return Candidate(
        device(device_id, unified=unified, busy=busy),
        None if free is None else free * GIB,
        need * GIB,
    )


CPU = candidate("cpu:0", 60)


@pytest.mark.parametrize(
    ("candidates", "chosen", "reason"),
    [
        ([candidate("cuda:0", 12), candidate("cuda:1", 20), CPU], "cuda:1", "most free memory"),
        ([candidate("cuda:0", 20), candidate("cuda:1", 20)], "cuda:0", "most free memory"),
        ([candidate("hip:1", 40, unified=True), candidate("hip:0", 12)], "hip:0", "most free"),
        ([candidate("hip:1", 40, unified=True), candidate("hip:0", 9)], "hip:1", "integrated"),
        ([candidate("cuda:0", 30, busy=1), candidate("cuda:1", 12)], "cuda:1", "most free"),
        ([candidate("cuda:0", 30, busy=1), CPU], "cuda:0", "no idle GPU"),
        ([candidate("cuda:0", 9), CPU], "cpu:0", "no GPU holds .*10.0 GiB needed on cuda:0, 9.0"),
        ([candidate("cuda:0", None), CPU], "cpu:0", "no GPU holds"),
        ([CPU], "cpu:0", "there is no GPU"),
        ([candidate("cuda:0", 9), candidate("cpu:0", 5)], None, "no device holds .*cuda:0, 9.0"),
        ([], None, "there is no device"),
    ],
)
def test_rules(candidates: list[Candidate], chosen: str | None, reason: str) -> None:
    import re

    choice = choose_device(candidates)
    assert (None if choice.device is None else choice.device.id) == chosen
    assert re.search(reason, choice.reason)


def test_exactly_full_fits() -> None:
    assert candidate("cuda:0", 10).fits
    assert not candidate("cuda:0", None, need=0 + 1).fits
