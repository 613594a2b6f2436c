from __future__ import annotations

import pytest

from luce.config.listener import ListenerConfig
from luce.errors import Forbidden
from luce.listener.cors import Cors, cors_of

ALLOW = b"access-control-allow-origin"
LOOPBACK = (
    b"http://localhost",
    b"http://localhost:3000",
    b"https://localhost:3000",
    b"http://app.localhost:8",
    b"http://127.0.0.1:5173",
    b"http://127.8.9.1",
    b"http://[::1]:3000",
)
FOREIGN = (
    b"https://example.com",
    b"http://localhost.example.com",
    b"http://127.0.0.1.example.com",
    b"http://notlocalhost",
    b"http://192.168.1.5:3000",
    b"http://[::2]",
    b"http://[",
    b"http://[::1",
    b"null",
    b"file://",
    b"ftp://localhost",
    b"localhost",
    b"http://localhost@example.com",
    b"\xff\xfe",
)


def asked(origin: bytes, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"127.0.0.1:8080"), (b"origin", origin), *more]


def allowed(cors: Cors, origin: bytes) -> bytes | None:
    return dict(cors.headers(asked(origin))).get(ALLOW)


@pytest.mark.parametrize("origin", LOOPBACK)
def test_pages_of_this_machine_need_not_be_named(origin: bytes) -> None:
    assert allowed(Cors(), origin) == origin
    Cors().check(asked(origin))


@pytest.mark.parametrize("origin", FOREIGN)
def test_pages_of_others_do(origin: bytes) -> None:
    assert allowed(Cors(), origin) is None
    assert Cors().preflight(asked(origin)) == []
    with pytest.raises(Forbidden, match="--cors-origin"):
        Cors().check(asked(origin))


def test_named_origins_are_the_only_ones() -> None:
    cors = Cors(("https://a.example", "null"))
    assert allowed(cors, b"https://a.example") == b"https://a.example"
    assert allowed(cors, b"null") == b"null"
    for origin in (b"https://b.example", b"https://a.example:444", b"http://localhost"):
        assert allowed(cors, origin) is None
        with pytest.raises(Forbidden):
            cors.check(asked(origin))


def test_answers_that_depend_on_the_origin_say_so() -> None:
    for headers in (asked(b"http://localhost"), asked(b"https://x.example"), []):
        assert (b"vary", b"Origin") in Cors().headers(headers)
    assert b"vary" not in dict(Cors(("*",)).headers(asked(b"https://x.example")))


def test_with_keys_any_page_may_try_one() -> None:
    cors = cors_of(ListenerConfig(), has_keys=True)
    assert allowed(cors, b"https://x.example") == b"*"
    cors.check(asked(b"https://x.example"))
    named = cors_of(ListenerConfig(cors_origin=("https://a.example",)), has_keys=True)
    assert allowed(named, b"https://x.example") is None
    assert allowed(cors_of(ListenerConfig(), has_keys=False), b"https://x.example") is None


def test_any_origin_can_be_asked_for_without_a_key() -> None:
    cors = cors_of(ListenerConfig(cors_origin=("*",)), has_keys=False)
    assert allowed(cors, b"https://x.example") == b"*"


def test_switched_off_nothing_is_said_and_nobody_let_in() -> None:
    cors = cors_of(ListenerConfig(cors=False), has_keys=True)
    origin = asked(b"http://localhost:3000")
    assert cors.headers(origin) == cors.preflight(origin) == []
    with pytest.raises(Forbidden):
        cors.check(origin)
    cors.check([])


def test_the_servers_own_pages_may() -> None:
    foreign = b"https://chat.example"
    for address in (b"192.168.0.7:8080", b"[fd00::7]:8080", b"localhost:8080"):
        Cors().check([(b"host", address), (b"origin", b"http://" + address)])
    Cors().check(asked(foreign, (b"sec-fetch-site", b"same-origin")))
    for site in (b"cross-site", b"same-site", b""):
        with pytest.raises(Forbidden):
            Cors().check(asked(foreign, (b"sec-fetch-site", site)))
    with pytest.raises(Forbidden):
        Cors().check([(b"host", b""), (b"origin", b"null")])


def test_a_name_that_points_here_is_not_the_servers_own() -> None:
    """DNS rebinding: a visited page lets its name point to this machine and asks "itself"."""
    rebound = [(b"host", b"evil.example:8080"), (b"origin", b"http://evil.example:8080")]
    with pytest.raises(Forbidden, match="cors-origin"):
        Cors().check(rebound)
    Cors(("http://evil.example:8080",)).check(rebound)


def test_a_preflight_is_told_what_it_asked_for() -> None:
    wanted = b"authorization,x-stainless-os,x-stainless-lang"
    headers = asked(b"http://localhost", (b"access-control-request-headers", wanted))
    answer = dict(Cors().preflight(headers))
    assert answer[b"access-control-allow-headers"] == wanted
    assert b"DELETE" in answer[b"access-control-allow-methods"]
    assert answer[b"access-control-max-age"] == b"600"


@pytest.mark.parametrize("wanted", [b"", b"*", b"a\x00b", b"a: b", b"x" * 3000, b"\xc3\xa4"])
def test_a_strange_wish_gets_the_usual_headers(wanted: bytes) -> None:
    headers = asked(b"http://localhost", (b"access-control-request-headers", wanted))
    answer = dict(Cors().preflight(headers))
    assert b"authorization" in answer[b"access-control-allow-headers"]
    assert b"x-api-key" in answer[b"access-control-allow-headers"]
