"""What placement asks of a driver, and the probe that asks the right one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from luce.placement.devices import Device, MemorySample

log = logging.getLogger(__name__)


class Driver(Protocol):
    """One source of devices. Blocking; never makes a compute context."""

    def devices(self) -> list[Device]:
        """The devices there are, by index; none where there is no such driver."""

    def free_bytes(self, uuid: str) -> int | None:
        """Free memory of one of them now; None if it cannot be known."""

    def process_bytes(self, uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        """What these processes hold of one of them; see `Attribution`."""


class DriverProbe:
    """Asks the driver a device came from. Implements `Probe` and `Attribution`.

    Args:
        drivers: asked in order for their devices, once.
        clock_ns: monotonic.
    """

    def __init__(
        self, drivers: Iterable[Driver], clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._clock_ns = clock_ns
        self._driver_of: dict[str, Driver] = {}
        self._devices: list[Device] = []
        for driver in drivers:
            for device in driver.devices():
                self._driver_of[device.uuid] = driver
                self._devices.append(device)

    @property
    def devices(self) -> list[Device]:
        """All devices of all drivers."""
        return list(self._devices)

    def sample(self, device_uuid: str) -> MemorySample | None:
        """See `Probe`. A driver that fails knows nothing; placement has rules for that."""
        driver = self._driver_of.get(device_uuid)
        if driver is None:
            return None
        try:
            free = driver.free_bytes(device_uuid)
        except Exception as error:
            log.warning(
                "free memory is not known", extra={"device": device_uuid, "error": str(error)}
            )
            return None
        # Less than nothing is no answer either.
        return None if free is None or free < 0 else MemorySample(free, self._clock_ns())

    def process_bytes(self, device_uuid: str, pids: Collection[int]) -> Mapping[int, int]:
        """See `Attribution`. What a driver that fails says of nobody is estimated by plans."""
        driver = self._driver_of.get(device_uuid)
        if driver is None or not pids:
            return {}
        try:
            return driver.process_bytes(device_uuid, pids)
        except Exception as error:
            log.debug("processes are not known", extra={"device": device_uuid, "error": str(error)})
            return {}
