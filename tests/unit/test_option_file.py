"""Files that options name: read whole, within bounds, and never waited for."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from luce.option_file import MAX_FILE_BYTES, read_option_file, reason_of


def test_a_file_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * MAX_FILE_BYTES)
    assert read_option_file(path) == b"x" * MAX_FILE_BYTES
    path.write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ValueError, match="it is larger than 1048576 bytes"):
        read_option_file(path)


def test_a_device_without_end() -> None:
    with pytest.raises(ValueError, match="it is larger than"):
        read_option_file(Path("/dev/zero"))


def test_a_pipe_without_a_writer_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_option_file(tmp_path / "pipe") == b""


def test_a_writer_that_is_there_is_waited_for() -> None:
    reading, writing = os.pipe()
    found: list[bytes] = []
    reader = threading.Thread(
        target=lambda: found.append(read_option_file(Path(f"/dev/fd/{reading}")))
    )
    reader.start()
    os.write(writing, b"first")
    os.write(writing, b" second")
    os.close(writing)
    reader.join()
    os.close(reading)
    # However the writes and the reads fall, the end is when nobody can write any more.
    assert found == [b"first second"]


@pytest.mark.parametrize(
    ("name", "says"), [("none", "No such file"), ("", "Is a directory"), ("a\0b", "null byte")]
)
def test_what_cannot_be_read(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises((OSError, ValueError)) as caught:
        read_option_file(tmp_path / name)
    assert isinstance(caught.value, OSError | ValueError)
    assert says in reason_of(caught.value)
