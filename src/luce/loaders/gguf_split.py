"""A GGUF model as a whole: one file, or the numbered files it was split into."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from luce.errors import ModelFileError
from luce.loaders.gguf import GgufFile, GgufMetadata
from luce.loaders.keys import Keys
from luce.loaders.mapped import MappedTensors

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_FILES = 10_000


class GgufModel:
    """An opened GGUF model. Any file of a split opens the whole split.

    Attributes:
        path: the first file.
        metadata: the first file's, which carries the model's.
        tensors: those of all files.
        file_bytes: size of all files together.

    Raises:
        ModelFileError: a file is missing, unreadable or damaged, or the counts disagree.
    """

    def __init__(self, path: Path) -> None:
        self._files: list[GgufFile] = []
        try:
            self._open(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drop the maps; metadata arrays can no longer be decoded."""
        for file in self._files:
            file.close()

    @property
    def metadata(self) -> GgufMetadata:
        return self._files[0].metadata

    def _open(self, path: Path) -> None:
        paths = split_paths(path)
        self.path = paths[0]
        self.tensors = MappedTensors()
        check_all_there(paths)
        for index, part in enumerate(paths):
            self._files.append(GgufFile(part))
            if len(paths) > 1:
                _check_part(self._files[-1], {"split.no": index, "split.count": len(paths)})
            self.tensors.add(self._files[-1].file, self._files[-1].tensors)
        self.file_bytes = sum(file.file.size for file in self._files)
        self._check_counts(len(paths))

    def _check_counts(self, num_files: int) -> None:
        keys = Keys(self.path, self.metadata)
        count = keys.count("split.count", default=1, minimum=0)
        if num_files == 1 and count > 1:
            raise ModelFileError(
                f"{self.path}: is one of {count} files of a split model (split.count), but its "
                "name does not end in -00001-of-0000N.gguf; give the files their original names"
            )
        expected = keys.count("split.tensors.count", default=len(self.tensors), minimum=0)
        if num_files > 1 and expected != len(self.tensors):
            raise ModelFileError(
                f"{self.path}: split.tensors.count promises {expected} tensors, but the "
                f"{num_files} files hold {len(self.tensors)}"
            )
        if not len(self.tensors):
            raise ModelFileError(f"{self.path}: holds no tensors, only metadata")


def split_paths(path: Path) -> list[Path]:
    """All files of the model that `path` belongs to, by its name; does not look at the disk.

    Raises:
        ModelFileError: the name's numbers make no sense.
    """
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= _MAX_FILES:
        raise ModelFileError(f"{path}: file {number} of {count} is not a possible split")
    return [
        path.with_name(f"{match['stem']}-{index:05d}-of-{count:05d}.gguf")
        for index in range(1, count + 1)
    ]


def check_all_there(paths: Sequence[Path]) -> None:
    """Look for the files of a split; what is wrong with a single one, opening it says.

    Raises:
        ModelFileError: one is missing.
    """
    count = len(paths)
    for number, path in enumerate(paths, start=1):
        if count > 1 and not os.path.lexists(path):
            raise ModelFileError(f"{path}: file {number} of {count} of this model is missing")


def _check_part(file: GgufFile, expected: dict[str, int]) -> None:
    keys = Keys(file.file.path, file.metadata)
    for key, value in expected.items():
        stored = keys.count(key, minimum=0)
        if stored != value:
            raise ModelFileError(
                f"{file.file.path}: {key} is {stored}, but by its name it should be {value}; "
                "the file was renamed or belongs to another model"
            )
