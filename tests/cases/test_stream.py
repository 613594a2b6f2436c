"""Bug log, area stream: B15 to B25, with answers written by a script.

What a grammar forces out of a real model is in `test_real_model.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from case_client import (
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    TEXT,
    Collected,
    anthropic_error_of,
    both,
    collect,
    error_of,
    minimal,
    serving,
    tool,
)
from http_harness import CHAT, Harness, Rules, events_of, eventually
from messages_client import both as both_messages
from scripted_text import writing

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("options", "is_counted"),
    [
        ({}, False),
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        (None, False),
    ],
)
async def test_case_b15_usage_comes_when_asked_for(
    path: str, options: dict[str, bool] | None, is_counted: bool
) -> None:
    fields = {} if options == {} else {"stream_options": options}
    async with serving("Hello.") as server:
        answer = await server.client.post(path, json=minimal(path, stream=True, **fields))
        *events, done = events_of(answer.text)
        ignored = await server.client.post(path, json=minimal(path, **fields))
    assert done == "[DONE]"
    assert ignored.status_code == 200
    counted = [event for event in events if not event["choices"]]
    assert len(counted) == is_counted
    assert not any(event.get("usage") for event in events if event["choices"])
    if is_counted:
        assert events[-1] is counted[0]
        assert counted[0]["choices"] == []
        assert counted[0]["usage"]["completion_tokens"] == 4
        assert events[-2]["choices"][0]["finish_reason"] is not None


BROKEN_UP = "\U0001f600 日本 ไทย \U0001f469‍\U0001f4bb"


@pytest.mark.parametrize("tokens_per_step", [1, 2, 7])
async def test_case_b17_characters_that_span_tokens(tokens_per_step: int) -> None:
    """The vocabulary's tokens are bytes: every one of these characters spans several."""
    async with serving(BROKEN_UP, tokens_per_step=tokens_per_step) as server:
        found = await both(server.client, minimal(CHAT, max_tokens=80))
        assert found.text == BROKEN_UP
        assert "�" not in "".join(text_pieces(found))
        # A cut character is dropped, the same way in both modes.
        for cut in range(1, 5):
            found = await both(server.client, minimal(CHAT, max_tokens=cut))
            assert found.text == (BROKEN_UP[0] if cut == 4 else "")
            assert found.finish == ["length"]
        assert (await both_messages(server, max_tokens=80))["content"][0]["text"] == BROKEN_UP


def text_pieces(found: Collected) -> list[str]:
    choices = [choice for chunk in found.chunks for choice in chunk["choices"]]
    return [choice["delta"].get("content") or "" for choice in choices]


ALPHABET = '"alpha beta gamma delta"'


@pytest.mark.parametrize("stop", ["beta gam", ["zz", "beta gam", "delta", "never"]])
@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
async def test_case_b19_a_stop_string_that_spans_tokens(stop: Any, tokens_per_step: int) -> None:
    async with serving(ALPHABET, tokens_per_step=tokens_per_step) as server:
        found = await both(server.client, minimal(CHAT, max_tokens=60, stop=stop))
        assert (found.text, found.finish) == ('"alpha ', ["stop"])
        body = minimal(COMPLETIONS, max_tokens=60, stop=stop)
        (choice,) = (await server.client.post(COMPLETIONS, json=body)).json()["choices"]
        assert (choice["text"], choice["finish_reason"]) == ('"alpha ', "stop")
        streamed = await server.client.post(COMPLETIONS, json={**body, "stream": True})
        choices = [event["choices"][0] for event in events_of(streamed.text)[:-1]]
        assert "".join(choice["text"] for choice in choices) == '"alpha '
        sequences = [stop] if isinstance(stop, str) else stop
        message = await both_messages(server, stop_sequences=sequences)
        assert message["content"] == [{"type": "text", "text": '"alpha '}]
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "beta gam")
        await server.idle()


@pytest.mark.parametrize("stop", ["", [""], ["x"] * 17])
async def test_case_b19_stops_that_make_no_sense_end_in_an_answer(stop: Any) -> None:
    async with serving(ALPHABET) as server:
        answer = await server.client.post(CHAT, json=minimal(CHAT, max_tokens=60, stop=stop))
        assert answer.status_code in (200, 400)
        if answer.status_code == 400:
            assert error_of(answer)[2] == "stop"
        else:
            assert collect(answer).text == ALPHABET


@pytest.mark.parametrize(
    ("path", "sign"),
    [
        (CHAT, b": keep-alive"),
        (COMPLETIONS, b": keep-alive"),
        (MESSAGES, b"event: ping"),
        (RESPONSES, b"response.in_progress"),
    ],
)
async def test_case_b21_signs_of_life_in_a_long_prefill(path: str, sign: bytes) -> None:
    rules = Rules(keep_alive_interval_s=0.1)
    script = writing(TEXT, "Hello.", hold_after=0)
    async with Harness(script, texts=(TEXT,), rules=rules) as server:
        text = await server.stream_held_until(path, minimal(path), sign.decode())
        assert text.count(sign.decode()) >= 3
        assert "data: ping" not in text
        assert text.endswith("\n\n")


async def test_case_b21_a_refusal_behind_a_busy_model_is_a_real_status() -> None:
    """Nothing is committed while the request waits: a full queue is a 503, a late one too."""
    rules = Rules(queue_limit=1, queue_timeout_s=0.3)
    script = writing(TEXT, "Hello.", hold_after=1, max_concurrency=1)
    async with Harness(script, texts=(TEXT,), rules=rules) as server:
        running = asyncio.create_task(server.ask("A", stream=True))
        await server.running(1)
        waiting = asyncio.create_task(server.ask("B", stream=True))
        await eventually(lambda: server.router.num_waiting == 1)
        for refused in (await server.ask("C", stream=True), await waiting):
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert refused.headers["content-type"] == "application/json"
        server.models[0].worker.release()
        assert collect(await running).text == "Hello."


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "word " * 2000}],
        [{"role": "nobody", "content": "x"}],
        [],
    ],
)
async def test_case_b23_bad_input_to_a_stream_is_its_twins_400(messages: Any) -> None:
    async with serving("Hello.", max_ctx=256) as server:
        for path in (CHAT, MESSAGES):
            body = minimal(path, messages=messages)
            whole = await server.client.post(path, json=body)
            streamed = await server.client.post(path, json={**body, "stream": True})
            assert (whole.status_code, streamed.status_code) == (400, 400)
            assert whole.json()["error"] == streamed.json()["error"]
            if path == MESSAGES:
                assert anthropic_error_of(streamed)[1] == "invalid_request_error"
            else:
                error_of(streamed)
        assert server.models[0].submits() == []


async def test_case_b25_no_filler_in_chunks() -> None:
    body = minimal(CHAT, max_tokens=5, tools=[tool("f")], tool_choice="none", stream=True)
    async with serving("Hello.") as server:
        chunks = collect(await server.client.post(CHAT, json=body)).chunks
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert not any("role" in delta for delta in deltas[1:])
    assert not any("tool_calls" in delta for delta in deltas)
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[-1] == "length"
    assert set(reasons[:-1]) == {None}
    for name in ("id", "created", "model"):
        assert len({chunk[name] for chunk in chunks}) == 1
