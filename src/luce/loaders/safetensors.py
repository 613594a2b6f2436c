"""Reads safetensors files: where each tensor lies. Trusts nothing in them.

Source: the safetensors format: u64 header length, JSON header, data; tensors fill the data
without holes or overlaps.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NoReturn

from luce.errors import ModelFileError
from luce.loaders.checkpoint import TensorMeta
from luce.loaders.json_file import parse_json_object, read_json_object
from luce.loaders.mapped import MappedFile, MappedTensors, StoredTensor

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
INDEX_NAME = "model.safetensors.index.json"

_DTYPE_BITS = {
    "F64": 64,
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U64": 64,
    "U32": 32,
    "U16": 16,
    "U8": 8,
    "BOOL": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "C64": 64,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}
_MAX_DIMS = 16
_SHARD_NAME = re.compile(r"(?P<stem>model)-\d{5}-of-(?P<count>\d{5})\.safetensors")


def _fail(file: MappedFile, problem: str) -> NoReturn:
    raise ModelFileError(f"{file.path}: {problem}")


def _read_header(file: MappedFile) -> tuple[dict[str, Any], int]:
    """The parsed header and where the data starts."""
    if file.size < 8:
        _fail(file, f"is not a safetensors file: it needs 8 bytes at least and has {file.size}")
    length = int.from_bytes(file.data[:8], "little")
    if length > MAX_HEADER_BYTES:
        _fail(file, f"its header claims {length} bytes, more than the format's {MAX_HEADER_BYTES}")
    if length > file.size - 8:
        _fail(
            file,
            f"its header needs {length} bytes at offset 8, but the file ends at {file.size}; it "
            "is truncated or damaged",
        )
    return parse_json_object(file.data[8 : 8 + length], f"{file.path}: header"), 8 + length


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _counts(file: MappedFile, name: str, entry: dict[str, Any], key: str) -> list[int]:
    value = entry.get(key)
    if not isinstance(value, list) or len(value) > _MAX_DIMS or not all(map(_is_count, value)):
        _fail(file, f"tensor {name!r}: {key} is {value!r:.80}, not a list of sizes")
    return value


def _read_tensor(file: MappedFile, name: str, entry: object, data_start: int) -> StoredTensor:
    if not isinstance(entry, dict):
        _fail(file, f"tensor {name!r}: its entry is not an object")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in _DTYPE_BITS:
        _fail(file, f"tensor {name!r}: dtype {dtype!r:.80} is unknown")
    shape = _counts(file, name, entry, "shape")
    offsets = _counts(file, name, entry, "data_offsets")
    if len(offsets) != 2:
        _fail(file, f"tensor {name!r}: data_offsets must be two numbers, not {offsets}")
    start, stop = offsets
    nbytes, odd_bits = divmod(math.prod(shape) * _DTYPE_BITS[dtype], 8)
    if odd_bits or stop - start != nbytes:
        _fail(file, f"tensor {name!r}: {dtype} {shape} does not take {stop - start} bytes")
    if data_start + stop > file.size:
        _fail(
            file,
            f"tensor {name!r}: {dtype} {shape} needs {nbytes} bytes at offset "
            f"{data_start + start}, but the file ends at {file.size}; it is truncated or damaged, "
            "download it again",
        )
    return StoredTensor(TensorMeta(name, dtype, tuple(shape), nbytes), data_start + start)


def _check_coverage(file: MappedFile, tensors: list[StoredTensor], data_start: int) -> None:
    """Tensors must fill the data part in turn, as the format demands."""
    in_order = sorted(tensors, key=lambda tensor: (tensor.start, tensor.meta.nbytes))
    end = data_start
    for tensor in in_order:
        if tensor.start != end:
            word = "overlaps its neighbour" if tensor.start < end else "leaves a hole before it"
            _fail(file, f"tensor {tensor.meta.name!r} {word} at offset {min(tensor.start, end)}")
        end = tensor.start + tensor.meta.nbytes
    if end != file.size:
        _fail(file, f"{file.size - end} bytes after the last tensor belong to none")


def read_safetensors(file: MappedFile) -> list[StoredTensor]:
    """Where each tensor of one file lies, in file order.

    Raises:
        ModelFileError: the file is no safetensors file or is damaged.
    """
    header, data_start = _read_header(file)
    tensors = [
        _read_tensor(file, name, entry, data_start)
        for name, entry in header.items()
        if name != "__metadata__"
    ]
    _check_coverage(file, tensors, data_start)
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index}: has no weight_map")
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelFileError(f"{index}: weight_map names {file_name!r:.80} for {name!r}")
    return weight_map


def _complete(paths: list[Path]) -> list[Path]:
    """The same files, with those a `-of-0000N` name promises and nobody listed."""
    match = _SHARD_NAME.fullmatch(paths[0].name) if paths else None
    if match is None:
        return paths
    count = match["count"]
    return [
        paths[0].with_name(f"{match['stem']}-{number:05d}-of-{count}.safetensors")
        for number in range(1, int(count) + 1)
    ]


def _shard_paths(folder: Path, weight_map: dict[str, str]) -> list[Path]:
    if weight_map:
        paths = [folder / name for name in sorted(set(weight_map.values()))]
    else:
        single = folder / "model.safetensors"
        found = [single] if single.exists() else sorted(folder.glob("model*.safetensors"))
        paths = _complete(found)
    if not paths:
        raise ModelFileError(f"{folder}: has no model*.safetensors file")
    for path in paths:
        if not path.exists():
            raise ModelFileError(f"{path}: this file of the model is missing")
    return paths


class SafetensorsModel:
    """The tensors of a Hugging Face folder: one file, or shards with or without an index.

    Attributes:
        tensors: those of all files.
        file_bytes: size of all files together.

    Raises:
        ModelFileError: a file or a tensor the index names is missing, or a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._files: list[MappedFile] = []
        try:
            self._open(folder)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drop the maps."""
        for file in self._files:
            file.close()

    def _open(self, folder: Path) -> None:
        index = folder / INDEX_NAME
        weight_map = _weight_map(index) if index.exists() else {}
        self.tensors = MappedTensors()
        for path in _shard_paths(folder, weight_map):
            self._files.append(MappedFile(path))
            self.tensors.add(self._files[-1], read_safetensors(self._files[-1]))
        self.file_bytes = sum(file.size for file in self._files)
        for name, file_name in weight_map.items():
            if name not in self.tensors:
                raise ModelFileError(
                    f"{folder / file_name}: tensor {name!r} is missing, but {INDEX_NAME} places "
                    "it there"
                )
        if not len(self.tensors):
            raise ModelFileError(f"{folder}: its safetensors files hold no tensors")
