"""Reads one GGUF file: metadata and where its tensors lie. Trusts nothing in it.

Every count, length and offset is held against the bytes that are really there before anything
is allocated, so a damaged or hostile file costs an error and no memory. Arrays are only located
when the file is opened (a vocabulary has hundreds of thousands of strings) and decoded when
asked for. Source: the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from luce.errors import ModelFileError
from luce.loaders.checkpoint import TensorMeta
from luce.loaders.ggml_types import FORK_TYPE_IDS, GGML_TYPES, TensorType
from luce.loaders.mapped import MappedFile, StoredTensor

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7
# Value type id → numpy type of a scalar or array element, little endian.
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
# What no model comes near. A file with holes claims any number of empty things at no cost, and
# stepping over them, or copying them, would take minutes.
_MAX_ENTRIES = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_TEXT_BYTES = 16 << 20
_MAX_STRINGS = 4 << 20
_MAX_STRINGS_BYTES = 256 << 20
_MAX_NUMBERS = 16 << 20
_MAX_ARRAYS = 1 << 16
_MAX_DIMS = 4
_MAX_ARRAY_DEPTH = 4
_MIN_ENTRY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
_MIN_ARRAY_BYTES = 4 + 8


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """A flat array inside the file, not decoded yet.

    Attributes:
        element: value type id of its elements.
        count: number of elements.
        start: offset of the first one.
    """

    element: int
    count: int
    start: int


class Cursor:
    """Reads forward through a mapped file and never past its end."""

    def __init__(self, file: MappedFile) -> None:
        self.data: mmap.mmap = file.data
        self.size = file.size
        self.path = file.path
        self.position = 0
        self.subject = "the header"
        self._left = {"strings": _MAX_STRINGS, "numbers": _MAX_NUMBERS, "arrays": _MAX_ARRAYS}

    def fail(self, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {self.subject}: {problem}")

    def need(self, count: int, what: str) -> None:
        """Refuse to go on unless `count` more bytes are there."""
        if count > self.size - self.position:
            self.fail(
                f"{what} needs {count} bytes at offset {self.position}, but the file ends at "
                f"{self.size}; it is truncated or damaged"
            )

    def limit(self, count: int, most: int, what: str) -> None:
        """Refuse more things of a kind than any model has."""
        if count > most:
            self.fail(f"{count} {what} are more than the {most} that luce reads; it is damaged")

    def _spend(self, count: int, what: str) -> None:
        """As `limit`, for the array elements of the whole file together."""
        self.limit(count, self._left[what], what)
        self._left[what] -= count

    def take(self, count: int, what: str) -> int:
        """Step over `count` bytes; returns where they start."""
        self.need(count, what)
        start = self.position
        self.position = start + count
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.data, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def string(self, what: str) -> str:
        length = self.u64(f"the length of {what}")
        start = self.take(length, what)
        self.limit(length, _MAX_TEXT_BYTES, f"bytes in {what}")
        try:
            return self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not valid UTF-8 ({error.reason} at byte {start + error.start})")

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings. The hot loop of opening a file, hence its plain shape."""
        data, unpack, position = self.data, _U64.unpack_from, self.position
        last = self.size - 8
        for _ in range(count):
            if position > last:
                break
            position += 8 + unpack(data, position)[0]
        else:
            last = self.size
        if position > last:
            self.fail(
                f"its {count} strings pass the end of the file at {self.size}; it is truncated or "
                "damaged"
            )
        self.position = position

    def value(self, kind: int, depth: int = 0) -> Any:
        """A metadata value: number, bool, str, `ArrayRef` or, for nested arrays, a list."""
        if kind == _STRING:
            return self.string("its text")
        if kind == _ARRAY:
            return self._array(depth)
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            self.fail(f"value type {kind} is unknown")
        start = self.take(dtype.itemsize, "its value")
        return np.frombuffer(self.data[start : self.position], dtype=dtype)[0].item()

    def _array(self, depth: int) -> Any:
        element = self.u32("the array's type")
        count = self.u64("the array's length")
        self._spend(1, "arrays")
        if element == _ARRAY:
            if depth >= _MAX_ARRAY_DEPTH:
                self.fail(f"arrays are nested more than {_MAX_ARRAY_DEPTH} deep")
            self.need(count * _MIN_ARRAY_BYTES, f"an array of {count} arrays")
            self.limit(count, _MAX_ARRAYS, "arrays")
            return [self._array(depth + 1) for _ in range(count)]
        found = ArrayRef(element, count, self.position)
        if element == _STRING:
            self.need(count * 8, f"an array of {count} strings")
            self._spend(count, "strings")
            self.skip_strings(count)
            self.limit(self.position - found.start, _MAX_STRINGS_BYTES, "bytes of strings")
        elif element in _NUMBERS:
            self.need(count * _NUMBERS[element].itemsize, f"an array of {count} numbers")
            self._spend(count, "numbers")
            self.take(count * _NUMBERS[element].itemsize, f"an array of {count} numbers")
        else:
            self.fail(f"array element type {element} is unknown")
        return found


class GgufMetadata(Mapping[str, Any]):
    """A file's metadata. Arrays are decoded at each access; keep what you need.

    Numbers are Python's, arrays of numbers numpy's (copies), arrays of strings lists.
    """

    def __init__(self, file: MappedFile, values: dict[str, Any]) -> None:
        self._file = file
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._decode(key, self._values[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def length(self, key: str) -> int | None:
        """Number of elements of an array without decoding it; None if it is no array."""
        value = self._values.get(key)
        if isinstance(value, ArrayRef):
            return value.count
        return len(value) if isinstance(value, list) else None

    def _decode(self, key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._decode(key, item) for item in value]
        if not isinstance(value, ArrayRef):
            return value
        if value.element == _STRING:
            return self._strings(key, value)
        dtype = _NUMBERS[value.element]
        stop = value.start + value.count * dtype.itemsize
        return np.frombuffer(self._file.data[value.start : stop], dtype=dtype)

    def _strings(self, key: str, ref: ArrayRef) -> list[str]:
        data, unpack, position = self._file.data, _U64.unpack_from, ref.start
        strings: list[str] = []
        try:
            for _ in range(ref.count):
                start = position + 8
                position = start + unpack(data, position)[0]
                strings.append(data[start:position].decode())
        except UnicodeDecodeError as error:
            raise ModelFileError(
                f"{self._file.path}: {key}[{len(strings)}] is not valid UTF-8 ({error.reason})"
            ) from error
        return strings


class GgufFile:
    """One opened GGUF file.

    Attributes:
        file: the map.
        version: 2 or 3.
        metadata: all key-value pairs.
        tensors: where each tensor lies, in file order; may be empty (first of a split).

    Raises:
        ModelFileError: the file cannot be read, is no GGUF file, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        try:
            self._read()
        except BaseException:
            self.file.close()
            raise

    def close(self) -> None:
        """Drop the map; metadata arrays can no longer be decoded."""
        self.file.close()

    def _read(self) -> None:
        cursor = Cursor(self.file)
        self.version = _read_version(cursor)
        num_tensors = cursor.u64("the tensor count")
        num_entries = cursor.u64("the metadata count")
        cursor.need(num_entries * _MIN_ENTRY_BYTES, f"metadata of {num_entries} entries")
        cursor.limit(num_entries, _MAX_ENTRIES, "metadata entries")
        self.metadata = GgufMetadata(self.file, _read_entries(cursor, num_entries))
        cursor.subject = "the tensor table"
        cursor.need(num_tensors * _MIN_TENSOR_BYTES, f"a table of {num_tensors} tensors")
        cursor.limit(num_tensors, _MAX_TENSORS, "tensors")
        alignment = _alignment(cursor, self.metadata)
        found = [_read_tensor(cursor, index) for index in range(num_tensors)]
        data_start = -(-cursor.position // alignment) * alignment
        self.tensors = _placed(cursor, found, data_start, alignment)


def _read_version(cursor: Cursor) -> int:
    magic = cursor.data[:4]
    if magic != MAGIC:
        raise ModelFileError(
            f"{cursor.path}: is not a GGUF file: it starts with {magic!r}, not {MAGIC!r}"
        )
    cursor.take(4, "the magic")
    version = cursor.u32("the version")
    if version in SUPPORTED_VERSIONS:
        return version
    if int.from_bytes(version.to_bytes(4, "little"), "big") in SUPPORTED_VERSIONS:
        cursor.fail("the file is big endian; only little-endian GGUF files are supported")
    cursor.fail(f"GGUF version {version} is not supported (supported: 2 and 3)")


def _read_entries(cursor: Cursor, count: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for index in range(count):
        cursor.subject = f"metadata entry {index}"
        key = cursor.string("its key")
        cursor.subject = f"metadata key {key!r}"
        if key in values:
            cursor.fail("appears twice")
        values[key] = cursor.value(cursor.u32("its type"))
    return values


def _alignment(cursor: Cursor, metadata: GgufMetadata) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    is_whole = isinstance(alignment, int) and not isinstance(alignment, bool)
    if not is_whole or alignment <= 0 or alignment & (alignment - 1) or alignment > 1 << 20:
        cursor.fail(f"general.alignment is {alignment!r}, which is not a power of two")
    return int(alignment)


def _tensor_type(cursor: Cursor, type_id: int) -> TensorType:
    kind = GGML_TYPES.get(type_id)
    if kind is None:
        forks = " (an id only forks of ggml use)" if type_id >= FORK_TYPE_IDS.start else ""
        cursor.fail(f"its type id {type_id}{forks} is unknown")
    return kind


def _read_tensor(cursor: Cursor, index: int) -> tuple[TensorMeta, int]:
    """One entry of the tensor table: its description and offset in the data part."""
    cursor.subject = f"tensor {index}"
    name = cursor.string("its name")
    cursor.subject = f"tensor {name!r}"
    num_dims = cursor.u32("its number of dimensions")
    if num_dims > _MAX_DIMS:
        cursor.fail(f"has {num_dims} dimensions, more than {_MAX_DIMS}")
    dims = [cursor.u64("its dimensions") for _ in range(num_dims)]
    kind = _tensor_type(cursor, cursor.u32("its type"))
    offset = cursor.u64("its offset")
    if 0 in dims:
        cursor.fail(f"has a dimension of 0 (dimensions {dims})")
    row = dims[0] if dims else 1
    if row % kind.block_elements:
        cursor.fail(
            f"rows of {row} elements do not fill {kind.name} blocks of {kind.block_elements}"
        )
    nbytes = math.prod(dims) // kind.block_elements * kind.block_bytes
    return TensorMeta(name, kind.name, tuple(reversed(dims)), nbytes), offset


def _placed(
    cursor: Cursor, found: list[tuple[TensorMeta, int]], data_start: int, alignment: int
) -> list[StoredTensor]:
    """Hold each tensor's range against the file and against its neighbours."""
    placed: list[StoredTensor] = []
    for meta, offset in found:
        cursor.subject = f"tensor {meta.name!r}"
        stop = data_start + offset + meta.nbytes
        if stop > cursor.size:
            cursor.fail(
                f"{meta.type} {list(meta.shape)} needs {meta.nbytes} bytes at offset "
                f"{data_start + offset}, but the file ends at {cursor.size}; it is truncated or "
                "damaged, download it again"
            )
        if offset % alignment:
            cursor.fail(f"its offset {offset} is not a multiple of the alignment {alignment}")
        placed.append(StoredTensor(meta, data_start + offset))
    in_order = sorted(placed, key=lambda tensor: tensor.start)
    for left, right in itertools.pairwise(in_order):
        if left.start + left.meta.nbytes > right.start:
            cursor.subject = f"tensor {right.meta.name!r}"
            cursor.fail(f"overlaps tensor {left.meta.name!r}")
    return placed
