"""Bodies that are no sensible JSON, at every endpoint that takes one: a 4xx, soon, in its shape."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest
from http_harness import CHAT, Harness, Rules
from scripted_text import VOCAB_SIZE, tagged_text

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

MIB = 2**20
PATHS = [
    CHAT,
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/responses",
    "/tokenize",
]
TEXT_FIELD = {"/v1/completions": "prompt", "/v1/responses": "input", "/tokenize": "content"}


TEXT = tagged_text()


def serving(**rules: Any) -> Harness:
    return Harness(FakeScript(vocab_size=VOCAB_SIZE), texts=(TEXT,), rules=Rules(**rules))


def with_text(path: str, text: bytes, more: bytes = b"") -> bytes:
    """A body that is right but for what it says."""
    if path in TEXT_FIELD:
        return b'{"%s":%s%s}' % (TEXT_FIELD[path].encode(), text, more)
    return b'{"max_tokens":4,"messages":[{"role":"user","content":%s}]%s}' % (text, more)


def wrong(path: str) -> dict[str, bytes]:
    """Bodies that no endpoint may take."""
    fine = with_text(path, b'"x"')
    return {
        "nothing": b"",
        "blanks": b" " * 1000,
        "no object": b"[" + fine + b"]",
        "half": fine[:-1],
        "twice": fine + fine,
        "invalid UTF-8": with_text(path, b'"\xff\xfe"'),
        "overlong UTF-8": with_text(path, b'"\xc0\xaf"'),
        "UTF-8 of a surrogate": with_text(path, b'"\xed\xa0\x80"'),
        "half a surrogate pair": with_text(path, b'"\\ud800"'),
        "control character": with_text(path, b'"\x00"'),
        "UTF-16": fine.decode().encode("utf-16"),
        "byte order mark": b"\xef\xbb\xbf" + fine,
        "NaN": with_text(path, b'"x"', b',"temperature":NaN'),
        "infinity": with_text(path, b'"x"', b',"temperature":Infinity'),
        "single quotes": fine.replace(b'"', b"'"),
        "deep lists": with_text(path, b"[" * 100_000),
        "deep objects": with_text(path, b'{"a":' * 100_000),
        "deep unknown field": with_text(path, b'"x"', b',"zz":' + b"[" * 100_000 + b"]" * 100_000),
        "null character as a text": b"\x00" * 1000,
        "compressed": gzip.compress(fine),
    }


def checked(path: str, status: int, body: bytes) -> str:
    """The error's message, after its shape was checked."""
    assert status < 500, body
    error = json.loads(body)
    if path.startswith("/v1/messages"):
        assert error["type"] == "error"
    else:
        assert set(error["error"]) == {"message", "type", "param", "code"}
    return str(error["error"]["message"])


@pytest.mark.parametrize("path", PATHS)
async def test_no_sensible_json(path: str) -> None:
    async with serving(max_body_bytes=16 * MIB) as server:
        for name, body in wrong(path).items():
            answer = await asyncio.wait_for(server.client.post(path, content=body), 60)
            assert answer.status_code == 400, (name, answer.text)
            message = checked(path, answer.status_code, answer.content)
            assert 0 < len(message) < 1000, name
        assert server.models[0].submits() == []


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/tokenize"])
@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 9000, "1" + "0" * 400, "-" + "9" * 30])
async def test_numbers_out_of_this_world(path: str, number: str) -> None:
    async with serving() as server:
        for field in ("temperature", "top_p", "seed", "presence_penalty"):
            body = with_text(path, b'"x"').replace(b'"max_tokens":4,', b"")
            body = body[:-1] + f',"{field}":{number}}}'.encode()
            answer = await server.client.post(path, content=body)
            if path == "/v1/messages/count_tokens" and answer.status_code == 200:
                continue  # A count does not sample, so it need not look at the values.
            assert answer.status_code == 400, (field, answer.text)
            assert field in checked(path, answer.status_code, answer.content)


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/tokenize"])
async def test_ten_megabytes_of_text(path: str) -> None:
    async with serving(max_body_bytes=16 * MIB) as server:
        for text in (b"a" * 10 * MIB, b"\\u00e4" * MIB, b"\\\\" * 5 * MIB):
            body = with_text(path, b'"' + text + b'"')
            answer = await asyncio.wait_for(server.client.post(path, content=body), 60)
            if path != "/v1/messages/count_tokens":
                assert answer.status_code == 400, answer.text[:200]
                checked(path, answer.status_code, answer.content)
            health = await asyncio.wait_for(server.client.get("/health"), 60)
            assert health.status_code == 200
        assert server.models[0].submits() == []


@pytest.mark.parametrize("path", PATHS)
async def test_a_gzip_body_that_says_so(path: str) -> None:
    async with serving() as server:
        for encoding in ("gzip", "GZIP", "deflate", "gzip, identity"):
            answer = await server.client.post(
                path,
                content=gzip.compress(with_text(path, b'"x"')),
                headers={"content-encoding": encoding},
            )
            assert answer.status_code == 415
            assert "Content-Encoding" in checked(path, 415, answer.content)
