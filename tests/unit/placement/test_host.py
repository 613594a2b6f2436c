from __future__ import annotations

from pathlib import Path

from luce.placement.devices import HOST_POOL
from luce.placement.host import HostDriver

GIB = 1 << 30


def test_parts_of_one_machine(host_files: dict[str, Path], tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nmodel name\t: Some CPU @ 2.0\n", encoding="ascii")
    driver = HostDriver([2, 0, 2], **host_files, cpuinfo=cpuinfo)
    devices = driver.devices()
    assert [device.id for device in devices] == ["cpu:0", "cpu:2"]
    for device in devices:
        assert (device.name, device.total_bytes, device.pool) == (
            "Some CPU @ 2.0",
            64 * GIB,
            HOST_POOL,
        )
        assert driver.free_bytes(device.uuid) == 40 * GIB


def test_a_machine_that_does_not_name_its_cpu(host_files: dict[str, Path], tmp_path: Path) -> None:
    (device,) = HostDriver(**host_files, cpuinfo=tmp_path / "missing").devices()
    assert device.name == "CPU"


def test_this_machine() -> None:
    driver = HostDriver()
    (device,) = driver.devices()
    assert 0 < driver.free_bytes("cpu:0") <= device.total_bytes


def test_what_our_processes_hold(host_files: dict[str, Path], tmp_path: Path) -> None:
    for pid, kib in ((7, 1024), (8, 0)):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        text = f"Name:\tx\nVmRSS:\t9999999 kB\nRssAnon:\t{kib} kB\nRssFile:\t77 kB\n"
        (folder / "status").write_text(text, encoding="ascii")
    driver = HostDriver([0, 1], **host_files, proc=tmp_path / "proc")
    assert driver.process_bytes("cpu:0", {7, 8, 9}) == {7: 1 << 20}
    # They share the machine: told of each part it would count twice.
    assert driver.process_bytes("cpu:1", {7}) == {}
