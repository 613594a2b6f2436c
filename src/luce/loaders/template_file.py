"""Files that hold a chat template, read with a size limit and plain errors."""

from __future__ import annotations

from pathlib import Path

from luce.errors import ModelFileError
from luce.loaders.mapped import read_small_file

MAX_TEMPLATE_BYTES = 4 << 20


def read_template_file(path: Path, *, may_be_empty: bool = False) -> str:
    """The template's source.

    Raises:
        ModelFileError: the file is missing, unreadable, no regular file, too large, no UTF-8, or
            empty where that is not allowed.
    """
    try:
        return read_small_file(path, MAX_TEMPLATE_BYTES, may_be_empty=may_be_empty).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: is not valid UTF-8 ({error.reason})") from error
