from __future__ import annotations

import pytest

from luce.listener.request_head import RequestHead

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
