"""Memory-mapped model files and the tensors inside them; knows no container format."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from luce.errors import ModelFileError
from luce.loaders.checkpoint import TensorMeta


def describe_os_error(error: OSError | ValueError) -> str:
    """The reason alone ("Permission denied"), without number and path."""
    return getattr(error, "strerror", None) or str(error)


def unreadable(path: str | Path, error: OSError | ValueError) -> ModelFileError:
    """What is said of a file or folder that cannot be looked at, whoever tried."""
    if isinstance(error, FileNotFoundError):
        return ModelFileError(f"{path}: there is no such file or folder")
    return ModelFileError(f"{path}: cannot be read: {describe_os_error(error)}")


def _regular_size(path: Path, status: os.stat_result, may_be_empty: bool = False) -> int:
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{path}: is not a regular file")
    if status.st_size == 0 and not may_be_empty:
        raise ModelFileError(f"{path}: the file is empty (0 bytes); download it again")
    return status.st_size


def check_is_file(path: Path, *, limit: int | None = None, may_be_empty: bool = False) -> int:
    """Refuse what must not even be opened: opening a pipe would wait for its writer.

    Args:
        path: the file.
        limit: the most bytes it may have.
        may_be_empty: a file without a byte is fine.

    Returns:
        The file's size in bytes.

    Raises:
        ModelFileError: nothing is there, or it is no regular file, or it is empty or too large.
    """
    try:
        size = _regular_size(path, path.stat(), may_be_empty)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if limit is not None and size > limit:
        raise ModelFileError(f"{path}: has {size} bytes, more than the {limit} it may have")
    return size


def read_small_file(path: Path, limit: int, *, may_be_empty: bool = False) -> bytes:
    """A whole file of at most `limit` bytes.

    Raises:
        ModelFileError: it is missing, unreadable, no regular file, too large, or empty.
    """
    size = check_is_file(path, limit=limit, may_be_empty=may_be_empty)
    try:
        with path.open("rb") as stream:
            # By its size and not by the limit: `read` sets the whole buffer aside at once.
            return stream.read(size)
    except OSError as error:
        raise unreadable(path, error) from error


class MappedFile:
    """A read-only map of a whole file.

    Args:
        path: the file; must be regular and not empty.

    Raises:
        ModelFileError: the file is missing, unreadable, empty or no regular file.
    """

    def __init__(self, path: Path) -> None:
        check_is_file(path)
        self.path = path
        try:
            with path.open("rb") as stream:
                self.size = _regular_size(path, os.fstat(stream.fileno()))
                self.data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from error

    def close(self) -> None:
        """Drop the map. Views made by `view` must be gone."""
        self.data.close()

    def view(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """The bytes from `start` to `stop` without a copy; keeps the map alive."""
        return np.frombuffer(self.data, dtype=np.uint8, count=stop - start, offset=start)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies.

    Attributes:
        start: offset in bytes from the beginning of the file.
    """

    meta: TensorMeta
    start: int


class MappedTensors:
    """A `TensorSource` over the tensors of one or more mapped files."""

    def __init__(self) -> None:
        self._tensors: dict[str, tuple[StoredTensor, MappedFile]] = {}

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def add(self, file: MappedFile, tensors: Iterable[StoredTensor]) -> None:
        """Take a file's tensors, whose ranges were checked against its size.

        Raises:
            ModelFileError: a name is already there.
        """
        for tensor in tensors:
            name = tensor.meta.name
            if name in self._tensors:
                other = self._tensors[name][1].path.name
                raise ModelFileError(f"{file.path}: tensor {name!r} is already in {other}")
            self._tensors[name] = (tensor, file)

    def drop(self, names: Iterable[str]) -> None:
        """Forget these tensors; their bytes stay where they are."""
        for name in names:
            del self._tensors[name]

    def names(self) -> Iterator[str]:
        """All names, in file order."""
        return iter(self._tensors)

    def metas(self) -> Iterator[TensorMeta]:
        """All tensors' descriptions, in file order."""
        return (stored.meta for stored, _ in self._tensors.values())

    def meta(self, name: str) -> TensorMeta:
        """Raises: KeyError if there is no such tensor."""
        return self._tensors[name][0].meta

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The stored bytes as a flat read-only view of the map: no copy.

        Raises:
            KeyError: there is no such tensor.
        """
        stored, file = self._tensors[name]
        return file.view(stored.start, stored.start + stored.meta.nbytes)
