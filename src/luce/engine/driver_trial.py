"""Finds a device's driver and tries it out: serving never depends on what it turns out to be."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

from luce.engine.device import Device, synchronize
from luce.engine.device_arena import DeviceArena, log_steps_go
from luce.engine.memory_driver import DIALECTS, DriverError, MemoryDriver
from luce.units import format_bytes

_log = logging.getLogger(__name__)

_MAPS = Path("/proc/self/maps")


def open_driver(device: Device) -> MemoryDriver | None:
    """The driver of a device; None, with the reason logged, where it does not serve."""
    try:
        if device.is_cpu:
            raise DriverError("weights on a CPU stay where they are")
        driver = _opened(device)
        _try_out(driver, device)
    except (RuntimeError, OSError, ValueError, TypeError) as error:
        log_steps_go(device, error)
        return None
    fields = {"device": device.name, "granularity": format_bytes(driver.granularity)}
    _log.debug("captured steps stay in an eviction", extra=fields)
    return driver


def _opened(device: Device) -> MemoryDriver:
    dialect = DIALECTS[device.name.partition(":")[0]]
    # The device's context is made here, if nobody has done so.
    synchronize(device)
    library = _loaded(dialect.library)
    if library is None:
        raise DriverError(f"{dialect.library} is not loaded")
    return MemoryDriver(ctypes.CDLL(library), dialect, device.torch.index or 0)


def _loaded(name: str) -> str | None:
    """Path of a library this process has: PyTorch may have brought its own copy along."""
    for line in _MAPS.read_text().splitlines():
        _, slash, path = line.partition("/")
        if slash and Path(path).name.startswith(name):
            return slash + path
    return None


def _try_out(driver: MemoryDriver, device: Device) -> None:
    """See that tensors survive a change of the memory behind them.

    Raises:
        RuntimeError: they do not.
    """
    arena = DeviceArena(driver, driver.granularity, device)
    address = None
    for value in (1, 2):
        arena.fill_up()
        tried = arena.bytes
        tried.fill_(value)
        found = (tried.data_ptr(), int(tried[0]), int(tried[-1]))
        arena.empty()
        address = found[0] if address is None else address
        if found != (address, value, value) or address != arena.address:
            raise DriverError("PyTorch does not use the driver's addresses as they are")
