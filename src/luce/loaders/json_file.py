"""Small JSON files beside a model, read with a size limit and plain errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from luce.errors import ModelFileError
from luce.loaders.mapped import read_small_file

MAX_JSON_BYTES = 64 << 20


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def parse_json_object(text: bytes, source: str) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        source: what the text is, for the message.

    Raises:
        ModelFileError: it is not valid JSON, or not an object.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ModelFileError(f"{source}: is not valid JSON: {reason}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{source}: must be a JSON object, not {type(value).__name__}")
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        ModelFileError: the file is missing, unreadable, too large or not a JSON object.
    """
    return parse_json_object(read_small_file(path, MAX_JSON_BYTES), str(path))


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """As `read_json_object`, but a file that is not there counts as `{}`."""
    return read_json_object(path) if path.exists() else {}
