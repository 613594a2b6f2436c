"""Devices from a file: what it may say, and what it is told when it says something else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from luce.errors import UsageError
from luce.placement.inventory_file import InventoryFile

MIB = 1 << 20

GOOD = """
[[device]]
id = "cuda:0"
uuid = "GPU-1"
name = "RTX 3090"
arch = "sm_86"
pci = "0000:01:00.0"
total_mib = 24564
free_mib = 23000
busy = 2
[[device]]
id = "hip:0"
type = "integrated"
total_mib = 1000
[[device]]
id = "cpu:0"
total_mib = 64000
"""


def write(tmp_path: Path, text: str, name: str = "devices.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_it_says(tmp_path: Path) -> None:
    file = InventoryFile(write(tmp_path, GOOD))
    gpu, integrated, cpu = file.devices()
    assert (gpu.id, gpu.uuid, gpu.backend, gpu.name) == ("cuda:0", "GPU-1", "cuda", "RTX 3090")
    assert (gpu.arch, gpu.pci, gpu.num_foreign_processes) == ("sm_86", "0000:01:00.0", 2)
    assert (gpu.total_bytes, gpu.is_unified) == (24564 * MIB, False)
    assert file.free_bytes("GPU-1") == 23000 * MIB
    assert (integrated.uuid, integrated.is_unified) == ("hip:0", True)
    assert file.free_bytes("hip:0") == 1000 * MIB
    assert cpu.is_unified


def test_json(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"device": [{"id": "cpu:0", "total_mib": 5}]}), "d.json")
    assert [device.id for device in InventoryFile(path).devices()] == ["cpu:0"]


def test_it_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    file = InventoryFile(path)
    write(tmp_path, GOOD.replace("23000", "7"))
    assert file.free_bytes("GPU-1") == 7 * MIB


def test_parts_of_its_cpu(tmp_path: Path) -> None:
    file = InventoryFile(write(tmp_path, GOOD), parts=(3, 0, 3))
    assert [device.id for device in file.devices()] == ["cuda:0", "hip:0", "cpu:0", "cpu:3"]
    assert file.free_bytes("cpu:3") == 64000 * MIB


def test_a_device_without_memory_is_unknown(tmp_path: Path) -> None:
    file = InventoryFile(write(tmp_path, "[[device]]\nid = 'cuda:0'\n"))
    assert file.devices()[0].total_bytes == 0
    assert file.free_bytes("cuda:0") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "write each device as a [[device]] table"),
        ("device = 1", "write each device as a [[device]] table"),
        ("device = [1]", "write each device as a [[device]] table"),
        ("not toml", "no inventory of devices"),
        ("[[device]]\ntotal_mib = 1", "device 1: id '' is none of cpu:N, cuda:N, hip:N"),
        ("[[device]]\nid = 'gpu:0'", "id 'gpu:0' is none of"),
        ("[[device]]\nid = 'cuda'", "id 'cuda' is none of"),
        ("[[device]]\nid = 'cpu:0'\ntotal = 1", "unknown key 'total'"),
        ("[[device]]\nid = 'cpu:0'\ntotal_mib = -1", "total_mib cannot be -1"),
        ("[[device]]\nid = 'cpu:0'\ntotal_mib = true", "total_mib cannot be True"),
        ("[[device]]\nid = 'cpu:0'\ntotal_mib = 1.5", "total_mib cannot be 1.5"),
        ("[[device]]\nid = 'cpu:0'\ntype = 'big'", "type cannot be 'big'"),
        ("[[device]]\nid = 'cpu:0'\nname = ''", "name cannot be ''"),
        ("[[device]]\nid = 'cpu:0'\n[[device]]\nid = 'cpu:0'", "two devices have the same id"),
        (
            "[[device]]\nid = 'cpu:0'\nuuid = 'a'\n[[device]]\nid = 'cpu:1'\nuuid = 'a'",
            "two devices have the same uuid",
        ),
    ],
)
def test_what_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        InventoryFile(write(tmp_path, text)).devices()
    assert problem in str(raised.value)
    assert "devices.toml" in str(raised.value)


@pytest.mark.parametrize("text", ["[]", "3", "[" * 100_000])
def test_json_that_is_no_inventory(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no inventory of devices"):
        InventoryFile(write(tmp_path, text, "d.json")).devices()


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^--device-inventory: cannot read .*missing.toml: No such file"
    ):
        InventoryFile(tmp_path / "missing.toml").devices()


def test_a_file_knows_no_processes(tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    path.write_text("[[device]]\nid = 'cuda:0'\n", encoding="ascii")
    assert InventoryFile(path).process_bytes("cuda:0", {1}) == {}


def test_a_file_that_is_too_large_is_not_read_in_part(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "#" * MIB)
    with pytest.raises(UsageError, match="no inventory of devices: it is larger than"):
        InventoryFile(path).devices()


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    os.mkfifo(path)
    with pytest.raises(UsageError, match=r"write each device as a \[\[device\]\] table"):
        InventoryFile(path).devices()
