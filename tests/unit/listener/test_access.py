from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from luce.config.listener import ListenerConfig
from luce.errors import Unauthorized, UsageError
from luce.listener.access import OPEN_PATHS, Access, read_access, read_key_file


def header(value: bytes, name: bytes = b"authorization") -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), (name, value)]


@pytest.mark.parametrize(
    ("headers", "admitted"),
    [
        (header(b"Bearer first"), True),
        (header(b"bearer second"), True),
        (header(b"BEARER   second "), True),
        (header(b"first", b"x-api-key"), True),
        (header(b" first ", b"x-api-key"), True),
        (header(b"Bearer wrong") + header(b"first", b"x-api-key"), True),
        (header(b"wrong", b"x-api-key") + header(b"Bearer first"), True),
        ([], False),
        (header(b""), False),
        (header(b"first"), False),
        (header(b"Bearer"), False),
        (header(b"Bearer "), False),
        (header(b"Basic first"), False),
        (header(b"Bearer firs"), False),
        (header(b"Bearer first2"), False),
        (header(b"Bearer FIRST"), False),
        (header(b"Bearer first second"), False),
        (header(b"first,second", b"x-api-key"), False),
        (header("Bearer schlüssel".encode()), False),
        (header(b"Bearer \xff\xfe"), False),
        (header(b"", b"x-api-key"), False),
        (header(b"first", b"api-key"), False),
    ],
)
def test_which_headers_are_let_in(headers: list[tuple[bytes, bytes]], admitted: bool) -> None:
    access = Access(["first", "second"])
    assert access.admits(headers) is admitted
    if admitted:
        access.check("/v1/models", headers)
    else:
        with pytest.raises(Unauthorized, match="Bearer KEY"):
            access.check("/v1/models", headers)
        for path in OPEN_PATHS:
            access.check(path, headers)


def test_a_missing_key_is_told_from_a_wrong_one_and_none_is_repeated() -> None:
    access = Access(["right"])
    with pytest.raises(Unauthorized, match=r"^An API key is needed"):
        access.check("/props", [])
    with pytest.raises(Unauthorized, match=r"^This API key is not known here") as refused:
        access.check("/props", header(b"Bearer wrong"))
    assert "wrong" not in str(refused.value)


def test_without_keys_all_are_let_in() -> None:
    access = Access()
    assert access.is_open
    access.check("/props", [])


def test_no_key_is_kept() -> None:
    access = Access(["visible-key"])
    assert not access.is_open
    assert b"visible-key" not in b"".join(access._digests)


def test_every_key_is_compared_whatever_the_first_says(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(
        "luce.listener.access.hmac.compare_digest", lambda *ab: bool(calls.append(ab)) or True
    )
    assert Access(["a", "b", "c"]).admits(header(b"Bearer a"))
    assert len(calls) == 3
    assert {len(value) for pair in calls for value in pair} == {32}


def test_key_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"# mine\r\nfirst\r\n\n  second,third  \n#last")
    file.chmod(0o600)
    assert read_key_file(file) == ["first", "second,third"]
    assert caplog.records == []
    access = read_access(ListenerConfig(api_key=("zero",), api_key_file=file))
    for key in (b"zero", b"first", b"second,third"):
        assert access.admits(header(key, b"x-api-key"))
    assert not access.admits(header(b"#last", b"x-api-key"))


def test_a_file_everybody_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text("secret-key")
    file.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert read_key_file(file) == ["secret-key"]
    (record,) = caplog.records
    assert "every user" in record.getMessage()
    assert "secret-key" not in str(vars(record))


def test_keys_from_a_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"first\n# no key\nsecond\n")
    os.close(writing)
    try:
        assert read_key_file(Path(f"/dev/fd/{reading}")) == ["first", "second"]
    finally:
        os.close(reading)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys")
    with pytest.raises(UsageError, match="there is no key in"):
        read_key_file(tmp_path / "keys")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no key in"),
        (b"\n# only this\n\n", "no key in"),
        (b"good\nnot one\n", "line 2 of .*visible ASCII"),
        (b"schl\xc3\xbcssel", "line 1 of .*visible ASCII"),
        (b"nul\x00", "line 1 of .*visible ASCII"),
        (b"a" * 1025, "line 1 of .*at most 1024"),
        (b"#" * (2**20 + 1), "larger than"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(UsageError, match=says) as refused:
        read_key_file(file)
    for line in content.split(b"\n"):
        if len(line) > 3 and b"#" not in line:
            assert line.decode() not in str(refused.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none: No such file"):
        read_key_file(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot read"):
        read_key_file(tmp_path)
