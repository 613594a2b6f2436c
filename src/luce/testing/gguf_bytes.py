"""Hand-made GGUF bytes: valid ones, and every way of being wrong that a writer would refuse."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL = range(8)
STRING, ARRAY, UINT64, INT64, FLOAT64 = range(8, 13)

_CODES = {
    UINT8: "B",
    INT8: "b",
    UINT16: "H",
    INT16: "h",
    UINT32: "I",
    INT32: "i",
    FLOAT32: "f",
    BOOL: "?",
    UINT64: "Q",
    INT64: "q",
    FLOAT64: "d",
}


def text(value: str | bytes) -> bytes:
    """A length-prefixed string."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value: object) -> bytes:
    """A metadata entry; an array's value is `(element kind, items)`, bytes go as they are."""
    return text(key) + struct.pack("<I", kind) + payload(kind, value)


def payload(kind: int, value: object) -> bytes:
    """A metadata value without its key and kind."""
    if kind == STRING and isinstance(value, str | bytes):
        return text(value)
    if isinstance(value, bytes):
        return value
    if kind == ARRAY and isinstance(value, tuple):
        element, items = value
        head = struct.pack("<IQ", element, len(items))
        return head + b"".join(payload(element, item) for item in items)
    return struct.pack("<" + _CODES[kind], value)


def tensor(name: str, dims: tuple[int, ...], type_id: int, offset: int) -> bytes:
    """An entry of the tensor table; `dims` are innermost first."""
    head = text(name) + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}QIQ", *dims, type_id, offset)


@dataclass(slots=True)
class GgufBytes:
    """Parts of a file; the counts follow from them unless given."""

    entries: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    num_entries: int | None = None
    num_tensors: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        """The file."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_entries = len(self.entries) if self.num_entries is None else self.num_entries
        head = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_entries)
        head += b"".join(self.entries) + b"".join(self.tensors)
        return head + b"\0" * (-len(head) % self.alignment) + self.data
