"""Chat completions that go well, over a real socket."""

from __future__ import annotations

import asyncio
import json

import pytest
from http_harness import CHAT, Harness, Rules, chat_body, connected, events_of, text_of

from luce.listener.dialects import openai_wire
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


async def test_whole_answer() -> None:
    async with Harness(FakeScript(cached_tokens=2)) as server:
        response = await server.ask("hello")
        assert response.status_code == 200
        assert response.headers["content-type"] == "application/json"
        body = response.json()
        assert body["object"] == "chat.completion"
        assert body["id"].startswith("chatcmpl-")
        assert body["model"] == "big"
        assert body["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ]
        assert body["usage"] == {
            "prompt_tokens": 5,
            "completion_tokens": 6,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }
        await server.idle()


async def test_stream_has_the_order_of_the_api() -> None:
    async with Harness(FakeScript(cached_tokens=2)) as server:
        response = await server.ask("hello", stream=True)
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-cache"
        events = events_of(response.text)
        assert events[-1] == "[DONE]"
        chunks = events[:-1]
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
        assert text_of(events) == "hello"
        assert chunks[-1]["choices"] == [
            {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
        ]
        assert all("role" not in c["choices"][0]["delta"] for c in chunks[1:])
        assert all(c["choices"][0]["finish_reason"] is None for c in chunks[:-1])
        assert all("tool_calls" not in c["choices"][0]["delta"] for c in chunks)
        for key in ("id", "created", "model", "object"):
            assert len({chunk[key] for chunk in chunks}) == 1
        assert chunks[0]["model"] == "big"
        assert all("usage" not in chunk for chunk in chunks)
        await server.idle()


@pytest.mark.parametrize(
    ("options", "num_usage"),
    [(None, 0), ({"include_usage": False}, 0), ({}, 0), ({"include_usage": True}, 1)],
)
async def test_b15_usage_chunk_only_on_request(options: object, num_usage: int) -> None:
    async with Harness() as server:
        response = await server.ask("abc", stream=True, stream_options=options)
        events = events_of(response.text)
        with_usage = [e for e in events if e != "[DONE]" and "usage" in e]
        assert len(with_usage) == num_usage
        assert [e for e in events if e != "[DONE]" and not e["choices"]] == with_usage
        if num_usage:
            assert events[-2] is with_usage[0]
            assert events[-3]["choices"][0]["finish_reason"] == "stop"
            assert with_usage[0]["usage"]["total_tokens"] == 7


async def test_b15_stream_options_without_stream_are_ignored() -> None:
    async with Harness() as server:
        response = await server.ask("abc", stream_options={"include_usage": True})
        assert response.status_code == 200


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize("stop", [None, "lo", ["zzz", "o w"], ["hello"], ["never there"]])
async def test_streamed_text_equals_unstreamed(tokens_per_step: int, stop: object) -> None:
    async with Harness(FakeScript(tokens_per_step=tokens_per_step)) as server:
        text = "hello wörld 🎉 end"
        whole = (await server.ask(text, stop=stop)).json()
        options = {"include_usage": True}
        streamed = await server.ask(text, stop=stop, stream=True, stream_options=options)
        events = events_of(streamed.text)
        assert text_of(events) == whole["choices"][0]["message"]["content"]
        assert events[-3]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
        assert events[-2]["usage"] == whole["usage"]
        await server.idle()


async def test_stop_string_ends_the_worker_and_hides_the_overshoot() -> None:
    script = FakeScript(reply=list(b"one two three four"), hold_after=len("one two three"))
    async with Harness(script) as server:
        answer = (await server.ask("x", stop=["two"])).json()
        assert answer["choices"][0]["message"]["content"] == "one "
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == len("one two")
        await server.idle()
        assert [cancel.reason for cancel in server.models[0].cancels()] == ["stop_string"]


async def test_b09_huge_max_tokens_is_clamped_and_length_reported() -> None:
    script = FakeScript(max_ctx=64, kv_pool_tokens=256, reply=[ord("a")] * 500)
    async with Harness(script) as server:
        answer = (await server.ask("Hi", max_tokens=65536)).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 64
        assert server.models[0].submits()[0].sampling.max_tokens == 62


async def test_b01_null_is_absent_everywhere() -> None:
    names = (*openai_wire.ChatRequest.__struct_fields__, *openai_wire.NO_EFFECT)
    fields = dict.fromkeys(name for name in names if name != "messages")
    body = {**chat_body("Hi"), **fields, "max_completion_tokens": 4}
    async with Harness() as server:
        response = await server.client.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        sampling = server.models[0].submits()[0].sampling
        assert (sampling.temperature, sampling.max_tokens, sampling.seed) == (0.0, 4, None)
        assert sampling.stop_token_ids == (0,)


async def test_unknown_fields_and_harmless_ones_change_nothing() -> None:
    async with Harness() as server:
        response = await server.ask(
            "Hi",
            model="no-such-model",
            shiny=[1, {"a": None}],
            user="me",
            metadata={"a": "b"},
            store=True,
            service_tier="auto",
            parallel_tool_calls=True,
            n=1,
            logprobs=False,
            tools=[],
            tool_choice="none",
            response_format={"type": "text"},
            modalities=["text"],
        )
        assert response.status_code == 200, response.text
        assert response.json()["model"] == "big"


async def test_sampling_reaches_the_worker() -> None:
    async with Harness() as server:
        await server.ask(
            "Hi",
            temperature=0.7,
            top_p=0.9,
            top_k=40,
            min_p=0.05,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            repetition_penalty=1.3,
            rep_window=64,
            seed=-1,
            logit_bias={"65": -100},
            ignore_eos=True,
            max_tokens=3,
        )
        sampling = server.models[0].submits()[0].sampling
        assert sampling.temperature == 0.7
        assert (sampling.top_p, sampling.top_k, sampling.min_p) == (0.9, 40, 0.05)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.1, 0.2)
        assert (sampling.repetition_penalty, sampling.rep_window) == (1.3, 64)
        assert sampling.seed == 2**64 - 1
        assert sampling.logit_bias == {65: -100.0}
        assert sampling.stop_token_ids == ()
        assert sampling.max_tokens == 3


async def test_b03_history_with_tool_calls_and_no_content() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "10.05"},
    ]
    async with Harness() as server:
        response = await server.client.post(CHAT, json={"messages": messages})
        assert response.status_code == 200, response.text
        assert server.models[0].prompts() == ["ab10.05"]


async def test_one_connection_serves_many_requests() -> None:
    async with Harness() as server:
        async with connected(server.port) as (reader, writer):
            for text, stream in (("one", False), ("two", True), ("three", False)):
                body = json.dumps(chat_body(text, stream=stream)).encode()
                writer.write(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                    b"Content-Type: application/json\r\n"
                    b"Content-Length: %d\r\n\r\n" % len(body) + body
                )
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                assert "200 ok" in head
                assert "connection: close" not in head
                if stream:
                    raw = await reader.readuntil(b"\r\n0\r\n\r\n")
                    assert b"[DONE]" in raw
                else:
                    length = int(head.split("content-length: ")[1].split("\r\n")[0])
                    answer = json.loads(await reader.readexactly(length))
                    assert answer["choices"][0]["message"]["content"] == text
        await server.idle()


async def test_http_1_0_client_and_lower_case_query() -> None:
    async with Harness() as server:
        async with connected(server.port) as (reader, writer):
            body = json.dumps(chat_body("old", stream=True)).encode()
            writer.write(
                b"POST /v1/chat/completions?beta=true HTTP/1.0\r\nContent-Length: %d\r\n\r\n"
                % len(body)
                + body
            )
            raw = await reader.read()
        assert b"[DONE]" in raw


async def test_request_id_is_the_clients_if_usable() -> None:
    async with Harness() as server:
        first = await server.client.post(CHAT, json=chat_body(), headers={"x-request-id": "mine-1"})
        assert first.headers["x-request-id"] == "mine-1"
        again = await asyncio.gather(
            *(
                server.client.post(CHAT, json=chat_body(), headers={"x-request-id": "same"})
                for _ in range(3)
            )
        )
        assert [response.status_code for response in again] == [200] * 3
        odd = await server.client.post(CHAT, json=chat_body(), headers={"x-request-id": "a b;c"})
        assert odd.headers["x-request-id"].startswith("req-")


async def test_many_at_once_each_gets_its_own_answer() -> None:
    async with Harness(FakeScript(max_concurrency=3), rules=Rules(queue_limit=40)) as server:
        texts = [f"text number {index}" for index in range(30)]
        answers = await asyncio.gather(*(server.ask(text) for text in texts))
        assert [a.json()["choices"][0]["message"]["content"] for a in answers] == texts
        assert server.models[0].worker.max_in_flight <= 3
        await server.idle()


async def test_keep_alive_comments_while_nothing_comes() -> None:
    script = FakeScript(hold_after=0)
    async with Harness(script, rules=Rules(keep_alive_interval_s=0.1)) as server:
        async with server.client.stream("POST", CHAT, json=chat_body("hi", stream=True)) as answer:
            lines = answer.aiter_lines()
            seen = []
            async for line in lines:
                seen.append(line)
                if seen.count(": keep-alive") == 3:
                    server.models[0].worker.release()
                    break
            rest = [line async for line in lines]
        assert "assistant" in seen[0]
        events = events_of("\n".join(seen + rest))
        assert text_of(events) == "hi"
        assert events[-1] == "[DONE]"
