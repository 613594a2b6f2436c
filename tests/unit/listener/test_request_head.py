from __future__ import annotations

import pytest

from luce.errors import InvalidRequest
from luce.listener.request_head import RequestHead, check_head

HEAD = (
    b"POST /upgrade HTTP/1.1\r\nHost: a\r\nupgrade : h2c\r\nX-Upgrade: 1\r\n"
    b"Connection: Upgrade\r\n\r\n"
)
HIDDEN = HEAD.replace(b"upgrade : h2c", b"x-asked : h2c")
BODY = b"\r\nUpgrade: me\r\n\r\nUpgrade: me"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 40, 1000])
def test_offered_upgrade_is_hidden_however_it_is_cut(size: int) -> None:
    head = RequestHead()
    whole = HEAD + BODY
    passed = b"".join(head.feed(whole[at : at + size]) for at in range(0, len(whole), size))
    assert passed == HIDDEN + BODY
    assert head.has_ended
    assert head.num_bytes == len(HEAD)


def test_bare_newlines_end_a_head() -> None:
    head = RequestHead()
    assert head.feed(b"GET / HTTP/1.1\nUPGRADE: x\n\nUpgrade: y") == (
        b"GET / HTTP/1.1\nx-asked: x\n\nUpgrade: y"
    )
    assert head.num_bytes == len(b"GET / HTTP/1.1\nUPGRADE: x\n\n")


def test_garbage_is_passed_on_at_once() -> None:
    assert RequestHead().feed(b"\x16\x03\x01 no newline") == b"\x16\x03\x01 no newline"


HOST = (b"host", b"x")
CHUNKED = (b"transfer-encoding", b"chunked")


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        ("1.1", [HOST]),
        ("1.1", [(b"host", b"")]),
        ("1.1", [HOST, CHUNKED]),
        ("1.1", [HOST, (b"transfer-encoding", b"Chunked")]),
        ("1.0", []),
        ("1.0", [HOST]),
    ],
)
def test_heads_that_mean_one_thing(version: str, headers: list[tuple[bytes, bytes]]) -> None:
    check_head(version, headers)


@pytest.mark.parametrize(
    ("version", "headers", "says"),
    [
        ("2.0", [HOST], "HTTP/2.0 is not spoken"),
        ("0.9", [], "HTTP/0.9 is not spoken"),
        ("1.1", [], "exactly one Host"),
        ("1.1", [HOST, HOST], "exactly one Host"),
        ("1.0", [HOST, HOST], "exactly one Host"),
        ("1.0", [CHUNKED], "Transfer-Encoding"),
        ("1.1", [HOST, (b"transfer-encoding", b"gzip, chunked")], "Transfer-Encoding"),
        ("1.1", [HOST, CHUNKED, (b"transfer-encoding", b"")], "Transfer-Encoding"),
    ],
)
def test_heads_that_mean_several(
    version: str, headers: list[tuple[bytes, bytes]], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        check_head(version, headers)
