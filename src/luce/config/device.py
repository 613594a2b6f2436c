"""Names of devices, as written on the command line. Knows nothing of what the machine has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from luce.config.option import BadValue
from luce.units import quoted

Backend = Literal["cpu", "cuda", "hip"]
BACKENDS: dict[str, Backend] = {"cpu": "cpu", "cuda": "cuda", "hip": "hip"}
MAX_INDEX = 999

AUTO = "auto"
"""Stands for the device that suits the model best."""

_NAME = re.compile(r"([a-z]+)(?::([0-9]+))?")
_MAX_DIGITS = 20


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A device that may exist; `cpu` is short for `cpu:0`."""

    backend: Backend
    index: int

    def __str__(self) -> str:
        """As everybody is told it, whichever way it was written."""
        return f"{self.backend}:{self.index}"


def check_target(text: str) -> None:
    """A device's name, or "auto".

    Raises:
        BadValue: neither.
    """
    if text != AUTO:
        parse_device(text)


def parse_device(text: str) -> DeviceName:
    """Read `cpu`, `cpu:N`, `cuda:N` or `hip:N`.

    Raises:
        BadValue: none of these; `auto` neither, since it names no device.
    """
    match = _NAME.fullmatch(text)
    backend, digits = match.groups() if match else ("", None)
    if backend == AUTO:
        raise BadValue(f"{text!r} names no device; name one: cpu, cpu:N, cuda:N or hip:N")
    if backend not in BACKENDS or (digits is None and backend != "cpu"):
        raise BadValue(f"{text!r} is none of cpu, cpu:N, cuda:N, hip:N")
    if len(digits or "") > _MAX_DIGITS or int(digits or 0) > MAX_INDEX:
        raise BadValue(f"{quoted(text, _MAX_DIGITS)}: no machine has that many; 0 to {MAX_INDEX}")
    return DeviceName(BACKENDS[backend], int(digits or 0))
