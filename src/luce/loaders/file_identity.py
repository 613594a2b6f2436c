"""Tells whether a model's files are still those that were read, without reading them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from luce.errors import ModelFileError
from luce.loaders.gguf_split import check_all_there, split_paths
from luce.loaders.mapped import unreadable

_IN_FOLDER = ("*.safetensors", "*.json")


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Name, size and time of last change (ns) of each of a model's files."""

    files: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        """As the files are now.

        Args:
            path: a GGUF file (any one of a split) or a Hugging Face folder.

        Raises:
            ModelFileError: one cannot be looked at.
        """
        try:
            if path.is_dir():
                paths = [each for pattern in _IN_FOLDER for each in sorted(path.glob(pattern))]
            else:
                paths = split_paths(path)
                check_all_there(paths)
            return cls(tuple(_entry(each, each.stat()) for each in paths))
        except OSError as error:
            raise unreadable(error.filename or path, error) from error

    @property
    def digest(self) -> str:
        """Another for other files; to be kept where the whole would be too long."""
        return hashlib.blake2b(repr(self.files).encode(), digest_size=16).hexdigest()


def require_unchanged(path: Path, digest: str) -> None:
    """Text and plan of a model are of the files there were when the server started.

    Args:
        path: as for `FileIdentity.of`.
        digest: of those files; empty: whatever they are.

    Raises:
        ModelFileError: they are others now, or cannot be looked at.
    """
    if digest and FileIdentity.of(path).digest != digest:
        raise ModelFileError(
            f"{path}: has changed since the server started; restart the server to load it anew"
        )


def _entry(path: Path, status: os.stat_result) -> tuple[str, int, int]:
    return path.name, status.st_size, status.st_mtime_ns
