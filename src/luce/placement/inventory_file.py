"""Devices from a file instead of the machine: for tests, dry runs and what-if questions.

TOML, or JSON by the file's suffix, with a list `device` of tables:

    [[device]]
    id = "cuda:0"
    type = "discrete"      # or "integrated", "cpu"
    total_mib = 24564
    free_mib = 23000       # default: all of it
    uuid = "GPU-1"         # default: the id
    name = "RTX 3090"
    arch = "sm_86"
    pci = "0000:01:00.0"
    busy = 0               # processes of others that compute on it
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from luce.errors import UsageError
from luce.option_file import read_option_file, reason_of
from luce.placement.devices import Backend, Device

_MIB = 1 << 20
_TYPES = ("discrete", "integrated", "cpu")
_TEXTS = ("id", "type", "uuid", "name", "arch", "pci")
_COUNTS = ("total_mib", "free_mib", "busy")
_MAX_MIB = 1 << 30


class InventoryFile:
    """Implements `Driver`. The file is read anew for each question, so it can play time going by.

    Args:
        path: the file.
        parts: the N of each `cpu:N` that is needed; those the file does not name are parts of its
            `cpu:0`.
    """

    def __init__(self, path: Path, parts: Sequence[int] = ()) -> None:
        self._path = path
        self._parts = sorted(set(parts))

    def devices(self) -> list[Device]:
        """Those of the file, in its order.

        Raises:
            UsageError: it cannot be read, or says nothing that makes sense.
        """
        devices = [device for device, _ in self._read()]
        named = {device.id: device for device in devices}
        host = named.get("cpu:0")
        if host is not None:
            ids = [f"cpu:{part}" for part in self._parts]
            devices += [replace(host, id=i, uuid=i) for i in ids if i not in named]
        return devices

    def free_bytes(self, uuid: str) -> int | None:
        """What the file says now; None of a device it gives no memory."""
        found = {device.uuid: (device, free) for device, free in self._read()}
        device, free = found.get(uuid) or found["cpu:0"]
        return free if device.total_bytes else None

    def process_bytes(self, uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        """A file knows no processes."""
        return {}

    def _read(self) -> list[tuple[Device, int]]:
        tables = self._content().get("device")
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise UsageError(f"{self._path}: write each device as a [[device]] table")
        read = [self._device(number, table) for number, table in enumerate(tables, start=1)]
        for what in ("id", "uuid"):
            values = [getattr(device, what) for device, _ in read]
            if len(set(values)) < len(values):
                raise UsageError(f"{self._path}: two devices have the same {what}")
        return read

    def _content(self) -> dict[str, Any]:
        try:
            text = read_option_file(self._path).decode("utf-8")
            content = json.loads(text) if self._path.suffix == ".json" else tomllib.loads(text)
        except RecursionError as error:
            raise UsageError(f"{self._path}: no inventory of devices: nested too deeply") from error
        except OSError as error:
            raise UsageError(
                f"--device-inventory: cannot read {self._path}: {reason_of(error)}"
            ) from error
        except ValueError as error:
            reason = reason_of(error)
            raise UsageError(f"{self._path}: no inventory of devices: {reason}") from error
        if not isinstance(content, dict):
            raise UsageError(f"{self._path}: no inventory of devices: it has no list of devices")
        return content

    def _device(self, number: int, table: Mapping[str, object]) -> tuple[Device, int]:
        where = f"{self._path}: device {number}"
        for key, value in table.items():
            _check(where, key, value)
        device_id = str(table.get("id", ""))
        backend = device_id.partition(":")[0]
        known: dict[str, Backend] = {name: name for name in get_args(Backend)}
        if backend not in known or not device_id.partition(":")[2].isdecimal():
            raise UsageError(f"{where}: id {device_id!r} is none of cpu:N, cuda:N, hip:N")
        total = _count(table, "total_mib", 0) * _MIB
        kind = table.get("type", "cpu" if backend == "cpu" else "discrete")
        device = Device(
            id=device_id,
            uuid=str(table.get("uuid", device_id)),
            backend=known[backend],
            name=str(table.get("name", device_id)),
            arch=str(table.get("arch", "")),
            pci=str(table["pci"]) if "pci" in table else None,
            total_bytes=total,
            is_unified=kind != "discrete",
            num_foreign_processes=_count(table, "busy", 0),
        )
        return device, min(total, _count(table, "free_mib", _MAX_MIB) * _MIB)


def _check(where: str, key: str, value: object) -> None:
    if key in _TEXTS:
        good = isinstance(value, str) and value != "" and value.isprintable()
        good = good and (key != "type" or value in _TYPES)
    elif key in _COUNTS:
        good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_MIB
    else:
        raise UsageError(f"{where}: unknown key {key!r}")
    if not good:
        raise UsageError(f"{where}: {key} cannot be {value!r}")


def _count(table: Mapping[str, object], key: str, default: int) -> int:
    value = table.get(key, default)
    return value if isinstance(value, int) else default
