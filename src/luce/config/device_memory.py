"""Declared memory of a device: `cpu:0=1GiB`."""

from __future__ import annotations

from dataclasses import dataclass

from luce.config.device import parse_device
from luce.config.option import BadValue
from luce.units import parse_bytes


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What may be used of a device, whatever it has.

    Attributes:
        device: its id, with an index.
        nbytes: in bytes.
    """

    device: str
    nbytes: int

    @classmethod
    def parse(cls, text: str) -> DeviceMemory:
        """Read `DEVICE=SIZE`.

        Raises:
            BadValue: it is not of that form, or the size is 0.
        """
        device, separator, size = text.partition("=")
        if not separator:
            raise BadValue(f"{text!r}: write DEVICE=SIZE, as cpu:0=1GiB")
        name = parse_device(device)
        try:
            nbytes = parse_bytes(size)
        except ValueError as error:
            raise BadValue(str(error)) from error
        if not nbytes:
            raise BadValue(f"{text!r}: the size is 0")
        return cls(str(name), nbytes)
