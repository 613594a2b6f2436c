from __future__ import annotations

from pathlib import Path

import pytest

from luce.errors import ModelFileError
from luce.loaders.json_file import (
    MAX_JSON_BYTES,
    parse_json_object,
    read_json_object,
    read_optional_json_object,
)


def test_an_object(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, 2.5, "é"]}', encoding="utf-8")
    assert read_json_object(path) == read_optional_json_object(path) == {"a": [1, 2.5, "é"]}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a":' * 100_000,
    ],
)
def test_what_is_none(text: bytes) -> None:
    with pytest.raises(ModelFileError, match=r"^x.json: "):
        parse_json_object(text, "x.json")


def test_only_an_optional_file_may_be_absent(tmp_path: Path) -> None:
    assert read_optional_json_object(tmp_path / "absent.json") == {}
    with pytest.raises(ModelFileError, match="no such file"):
        read_json_object(tmp_path / "absent.json")


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    with path.open("wb") as stream:
        stream.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(ModelFileError, match=rf"has {MAX_JSON_BYTES + 1} bytes, more than"):
        read_json_object(path)


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelFileError, match=r"a.json: cannot be read: Permission denied"):
        read_json_object(path)
