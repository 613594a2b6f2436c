"""Streams, byte by byte: chunks as HTTP frames them, on connections that live on, and broken ones.

Parts of a stream do not go the way of its head and of all other answers, so their framing is our
own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from http_harness import CHAT, LOOPS, ByteText, Harness, chat_body, eventually

from luce.listener.dialects.openai_chat_encoders import ChatStreamEncoder
from luce.testing.fake_script import FakeScript
from luce.testing.slow_reader import SlowReader
from luce.text.events import GenEvent, TextDelta

pytestmark = pytest.mark.anyio

LARGE = FakeScript(reply=[97] * 60_000, tokens_per_step=30_000, max_ctx=10**5, kv_pool_tokens=10**6)
"""Deltas that are larger than what the kernel takes at once."""


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def request(text: str = "hello", headers: str = "", **fields: Any) -> bytes:
    body = json.dumps(chat_body(text, stream=True, **fields)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


class Answers:
    """Reads answers from a connection, chunk by chunk, as strictly as it can be done."""

    def __init__(self, client: SlowReader) -> None:
        self._client = client
        self._raw = b""

    async def head(self) -> bytes:
        return await self._line(b"\r\n\r\n")

    async def chunks(self) -> list[bytes]:
        """Of one answer; what comes behind it is left."""
        chunks = []
        while size := int(await self._line(b"\r\n"), 16):
            while len(self._raw) < size + 2:
                await self._more()
            chunks.append(self._raw[:size])
            assert self._raw[size : size + 2] == b"\r\n"
            self._raw = self._raw[size + 2 :]
        assert await self._line(b"\r\n") == b""
        return chunks

    async def rest(self) -> bytes:
        """All until the server closes."""
        return self._raw + await asyncio.wait_for(self._client.read_all(), 60)

    async def _line(self, end: bytes) -> bytes:
        while end not in self._raw:
            await self._more()
        line, self._raw = self._raw.split(end, 1)
        return line

    async def _more(self) -> None:
        data = await asyncio.wait_for(self._client.read(10**6), 60)
        assert data, f"the server closed behind {self._raw[-200:]!r}"
        self._raw += data


def text_of(chunks: list[bytes]) -> str:
    *events, done, rest = b"".join(chunks).decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    deltas = [json.loads(event.removeprefix("data: "))["choices"] for event in events]
    return "".join(choice[0]["delta"].get("content", "") for choice in deltas if choice)


async def test_streams_in_a_pipeline_come_one_after_the_other() -> None:
    async with Harness() as server, server.slow_reader() as client:
        answers = Answers(client)
        await client.send_raw(request("one") + request("two") + request("three"))
        for text in ("one", "two", "three"):
            assert b"transfer-encoding: chunked" in (await answers.head()).lower()
            assert text_of(await answers.chunks()) == text
        await client.send_raw(request("four", "Connection: close\r\n"))
        await answers.head()
        assert text_of(await answers.chunks()) == "four"
        assert await answers.rest() == b""
        await server.idle()


async def test_large_parts_are_whole_and_the_connection_lives_on() -> None:
    async with Harness(LARGE) as server, server.slow_reader() as client:
        answers = Answers(client)
        for _ in range(2):
            await client.send_raw(request(max_tokens=60_000))
            await answers.head()
            assert text_of(await answers.chunks()) == "a" * 60_000
        await server.idle()


async def test_a_client_that_asks_first_whether_to_go_on() -> None:
    async with Harness() as server, server.slow_reader() as client:
        answers = Answers(client)
        head, body = request(headers="Expect: 100-continue\r\n").split(b"\r\n\r\n", 1)
        await client.send_raw(head + b"\r\n\r\n")
        assert b"100 Continue" in await answers.head()
        await client.send_raw(body)
        assert b"200 OK" in await answers.head()
        assert text_of(await answers.chunks()) == "hello"


async def test_rubbish_behind_a_request_never_gets_into_its_stream() -> None:
    script = FakeScript(reply=[97] * 400, hold_after=5)
    async with Harness(script) as server, server.slow_reader() as client:
        answers = Answers(client)
        await client.send_raw(request())
        await answers.head()
        await client.send_raw(b"\x00 rubbish\r\n\r\n")
        rest = await answers.rest()
        assert b"400 Bad Request" not in rest
        assert b"[DONE]" not in rest
        await server.idle()


async def test_a_reset_between_parts_ends_one_stream_only() -> None:
    script = FakeScript(reply=[97] * 3000, hold_after=100)
    async with Harness(script) as server:
        async with server.slow_reader() as client, server.slow_reader() as other:
            for each in (client, other):
                await each.send_raw(request())
            answers = Answers(other)
            await answers.head()
            await server.running(2)
            client.reset()
            await eventually(lambda: len(server.models[0].cancels()) == 1)
            await server.let_go(answered := asyncio.ensure_future(answers.chunks()))
            assert text_of(await answered) == "a" * 3000
        await server.idle()


class BrokenText(ByteText):
    """Its pipeline breaks at a `!`: a bug in whatever reads a model's output."""

    def pipeline(self, *args: Any) -> Any:
        output = super().pipeline(*args)
        feed = output.feed

        def break_at(token_ids: Any, *rest: Any) -> list[GenEvent]:
            events = feed(token_ids, *rest)
            if ord("!") in token_ids:
                raise StopIteration(events)
            return events

        output.feed = break_at  # type: ignore[method-assign,assignment]
        return output


@pytest.mark.parametrize("n", [1, 2])
async def test_a_bug_in_reading_output_is_an_error_event(
    n: int, caplog: pytest.LogCaptureFixture
) -> None:
    script = FakeScript(hold_after=1)
    async with Harness(script, texts=(BrokenText(),)) as server:
        async with server.slow_reader() as client:
            answers = Answers(client)
            other = asyncio.create_task(server.ask("other"))
            await client.send_raw(request("ab!" + "c" * 3000, n=n) + request("fine"))
            reading = asyncio.create_task(whole_stream(answers))
            await server.let_go(reading, other)
            events = b"".join(reading.result()).decode()
            error = json.loads(events.split("\n\n")[-3].removeprefix("data: "))["error"]
            assert (error["code"], error["param"]) == ("internal_error", None)
            assert '"content":"b"' in events
            assert events.endswith("data: [DONE]\n\n")
            # The worker does not go on for nobody, and the connection is good for more.
            await eventually(server.models[0].cancels)
            following = asyncio.create_task(whole_stream(answers))
            await server.let_go(following)
            assert text_of(following.result()) == "fine"
            assert other.result().json()["choices"][0]["message"]["content"] == "other"
            whole = await server.let_go(server.ask("ab!", n=n))
            assert (whole[0].status_code, whole[0].json()["error"]["code"]) == (500, error["code"])
        await server.idle()
    logged = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert {each.getMessage() for each in logged} == {"output could not be read"}


async def whole_stream(answers: Answers) -> list[bytes]:
    await answers.head()
    return await answers.chunks()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("error", [ZeroDivisionError, StopIteration])
async def test_a_bug_in_writing_events_breaks_one_stream_off(
    n: int,
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    encode = ChatStreamEncoder.encode

    def break_at(self: ChatStreamEncoder, event: GenEvent, choice: int = 0) -> bytes:
        if isinstance(event, TextDelta) and "!" in event.text:
            raise error
        return encode(self, event, choice)

    monkeypatch.setattr(ChatStreamEncoder, "encode", break_at)
    async with Harness() as server, server.slow_reader() as client:
        answers = Answers(client)
        await client.send_raw(request("ab!c", n=n))
        await answers.head()
        assert not (await answers.rest()).endswith(b"0\r\n\r\n")
        await server.idle()
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == [
        "request failed by a bug of ours"
    ]
