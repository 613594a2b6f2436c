from __future__ import annotations

import os
from pathlib import Path

import pytest

from luce.errors import ModelFileError
from luce.loaders.file_identity import FileIdentity, require_unchanged


def test_a_file_that_stays_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"abc")
    assert FileIdentity.of(path) == FileIdentity.of(path)


def test_size_and_time_tell(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"abc")
    before = FileIdentity.of(path)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
    touched = FileIdentity.of(path)
    path.write_bytes(b"abcd")
    assert len({before.files, touched.files, FileIdentity.of(path).files}) == 3


def test_every_file_of_a_split_counts(tmp_path: Path) -> None:
    paths = [tmp_path / f"m-0000{index}-of-00002.gguf" for index in (1, 2)]
    for path in paths:
        path.write_bytes(b"abc")
    before = FileIdentity.of(paths[0])
    assert [name for name, _, _ in before.files] == [path.name for path in paths]
    assert FileIdentity.of(paths[1]) == before
    paths[1].write_bytes(b"abcd")
    assert FileIdentity.of(paths[0]) != before


def test_every_file_of_a_folder_counts(tmp_path: Path) -> None:
    for name in ("config.json", "a.safetensors", "b.safetensors", "README.md"):
        (tmp_path / name).write_bytes(b"abc")
    before = FileIdentity.of(tmp_path)
    assert {name for name, _, _ in before.files} == {
        "config.json",
        "a.safetensors",
        "b.safetensors",
    }
    (tmp_path / "b.safetensors").write_bytes(b"abcd")
    assert FileIdentity.of(tmp_path) != before


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"m\.gguf: there is no such file"):
        FileIdentity.of(tmp_path / "m.gguf")


def test_files_must_be_those_of_a_digest(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    digest = FileIdentity.of(path).digest
    require_unchanged(path, digest)
    path.write_bytes(b"other")
    with pytest.raises(ModelFileError, match=r"m\.gguf: has changed since the server started"):
        require_unchanged(path, digest)
    require_unchanged(path, "")  # Whatever they are.


def test_a_digest_tells_them_apart(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    before = FileIdentity.of(path)
    assert before.digest == FileIdentity.of(path).digest
    path.write_bytes(b"other")
    assert FileIdentity.of(path).digest != before.digest
