"""Log probabilities in each API, streamed and not, and through the official clients.

Row A34 of the swap specification; values that are none are in `test_bad_input.py`.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from http_harness import CHAT, ByteText, Harness, chat_body, events_of
from messages_client import CALL, named_events
from reporting_text import ReportingText, last_call
from responses_client import F as RESPONSES_F
from responses_client import both as both_responses
from scripted_text import VOCAB_SIZE, tagged_text, writing

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

PROMPT = "a wörld 🎉!"
BYTES = [list(part) for part in (b"a", b" ", b"w", "ö".encode())]
F = {"type": "function", "function": {"name": "f", "parameters": RESPONSES_F["parameters"]}}
INCLUDE = ["message.output_text.logprobs"]
COMPLETIONS = "/v1/completions"


def echoing(**fields: Any) -> Harness:
    return Harness(FakeScript(**fields), texts=(ReportingText(ByteText()),))  # type: ignore[arg-type]


def repeating(**fields: Any) -> Harness:
    """For raw prompts, which the text side of bytes does not know."""
    script = FakeScript(vocab_size=VOCAB_SIZE, **fields)
    return Harness(script, texts=(ReportingText(tagged_text()),))  # type: ignore[arg-type]


def answering(answer: str, **fields: Any) -> Harness:
    text = tagged_text()
    return Harness(writing(text, answer, **fields), texts=(ReportingText(text),))  # type: ignore[arg-type]


def strictly(response: httpx2.Response) -> Any:
    """JSON without NaN and infinities."""
    assert response.status_code == 200, response.text
    return json.loads(response.text, parse_constant=_no_json)


def _no_json(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def chat_logprobs(events: list[Any], index: int = 0) -> list[Any]:
    """The content entries of a choice's chunks, joined."""
    choices = [c for event in events[:-1] for c in event["choices"] if c["index"] == index]
    found = [choice["logprobs"]["content"] for choice in choices if choice["logprobs"]]
    return [entry for entries in found for entry in entries]


# --- chat --------------------------------------------------------------------------------


async def test_chat_entries() -> None:
    async with echoing() as server:
        body = strictly(await server.ask(PROMPT, logprobs=True, top_logprobs=3))
        (choice,) = body["choices"]
        assert last_call(server).sampling.logprobs == 3
    logprobs = choice["logprobs"]
    assert logprobs["refusal"] is None
    assert [entry["bytes"] for entry in logprobs["content"]][:4] == BYTES
    first, half = logprobs["content"][0], logprobs["content"][8]
    assert first == {
        "token": "a",
        "logprob": -0.25,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.25, "bytes": [97]},
            {"token": "\ufffd", "logprob": -1.5, "bytes": [255]},
            {"token": "never", "logprob": -9999.0, "bytes": list(b"never")},
        ],
    }
    assert (half["token"], half["bytes"]) == ("\ufffd", [0xF0, 0x9F])
    joined = bytes(byte for entry in logprobs["content"] for byte in entry["bytes"])
    assert joined.decode() == choice["message"]["content"] == PROMPT


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"stop": "ör"}, {"max_tokens": 5}])
async def test_chat_streams_equal_whole_answers(
    fields: dict[str, Any], tokens_per_step: int
) -> None:
    asked = {"logprobs": True, "top_logprobs": 2, **fields}
    async with echoing(tokens_per_step=tokens_per_step) as server:
        whole = strictly(await server.ask(PROMPT, **asked))["choices"]
        events = events_of((await server.ask(PROMPT, **asked, stream=True)).text)
    assert len(whole) == fields.get("n", 1)
    for index, choice in enumerate(whole):
        assert chat_logprobs(events, index) == choice["logprobs"]["content"]
        assert choice["logprobs"]["content"]
    for event in events[:-1]:
        for choice in event["choices"]:
            # A chunk's tokens are those of its text.
            parts = [e["bytes"] for e in (choice["logprobs"] or {"content": []})["content"]]
            text = bytes(byte for part in parts for byte in part).decode()
            assert text == choice["delta"].get("content", "")


async def test_nothing_is_reported_unasked() -> None:
    async with echoing() as server:
        for fields in ({}, {"logprobs": False}, {"logprobs": None, "top_logprobs": 0}):
            response = await server.ask(PROMPT, **fields)
            assert response.json()["choices"][0]["logprobs"] is None
            assert last_call(server).sampling.logprobs is None
            events = events_of((await server.ask(PROMPT, **fields, stream=True)).text)
            assert all(event["choices"][0]["logprobs"] is None for event in events[:-1])
        response = await server.ask(PROMPT, logprobs=True)
        entries = response.json()["choices"][0]["logprobs"]["content"]
        assert last_call(server).sampling.logprobs == 0
    assert all(entry["top_logprobs"] == [] for entry in entries)


async def test_an_answer_without_content_has_an_empty_list() -> None:
    asked = {"logprobs": True, "tools": [F]}
    async with answering(CALL) as server:
        whole = strictly(await server.ask("x", **asked))["choices"][0]
        events = events_of((await server.ask("x", **asked, stream=True)).text)
    assert whole["message"]["content"] is None
    assert whole["logprobs"] == {"content": [], "refusal": None}
    assert events[0]["choices"][0]["logprobs"] == {"content": [], "refusal": None}
    assert chat_logprobs(events) == []


async def test_reasoning_and_calls_are_not_reported() -> None:
    asked = {"logprobs": True, "tools": [F], "reasoning_effort": "low"}
    async with answering(f"<think>hm</think>ok\n{CALL}") as server:
        choice = strictly(await server.ask("x", **asked))["choices"][0]
    tokens = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert "".join(tokens) == choice["message"]["content"]
    assert choice["message"]["reasoning_content"] == "hm"


async def test_b51_through_the_official_clients_stream_helper() -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    asked: dict[str, Any] = {
        "model": "m",
        "messages": messages,
        "logprobs": True,
        "top_logprobs": 3,
        "n": 2,
        "tools": [F | {"function": {**F["function"], "strict": True}}],
        "reasoning_effort": "low",
    }
    for answer in (f"<think>hm</think>wörld 🎉\n{CALL}", CALL, "Only.", ""):
        async with answering(answer) as server:
            sdk = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
            async with sdk:
                whole = await sdk.chat.completions.create(**asked)
                async with sdk.chat.completions.stream(**asked) as stream:
                    final = await stream.get_final_completion()
        for ours, theirs in zip(final.choices, whole.choices, strict=True):
            assert ours.logprobs == theirs.logprobs
            assert ours.logprobs is not None
            assert ours.message.content == theirs.message.content
            assert ours.finish_reason == theirs.finish_reason
            assert len(ours.message.tool_calls or ()) == answer.count("<tool_call>")


# --- legacy completions ------------------------------------------------------------------


async def legacy(server: Harness, **fields: Any) -> httpx2.Response:
    body = {"prompt": PROMPT, "max_tokens": 100, **fields}
    return await server.client.post(COMPLETIONS, json=body)


@pytest.mark.parametrize("tokens_per_step", [1, 3, 100])
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"prompt": ["ab", "é"]}, {"stop": "ör"}])
async def test_b07_slices_of_a_stream_are_the_lists_of_a_whole_answer(
    fields: dict[str, Any], tokens_per_step: int
) -> None:
    async with repeating(tokens_per_step=tokens_per_step) as server:
        whole = strictly(await legacy(server, logprobs=2, **fields))["choices"]
        events = events_of((await legacy(server, logprobs=2, **fields, stream=True)).text)
        assert last_call(server).sampling.logprobs == 2
    for choice in whole:
        lists: dict[str, list[Any]] = {name: [] for name in choice["logprobs"]}
        assert set(lists) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
        for event in events[:-1]:
            (chunk,) = event["choices"]
            if chunk["index"] == choice["index"] and chunk["text"]:
                for name, added in chunk["logprobs"].items():
                    lists[name] += added
        assert lists == choice["logprobs"]
        assert len({len(values) for values in lists.values()}) == 1
        for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
            assert token.startswith("bytes:") or choice["text"][offset:].startswith(token)


async def test_b07_lists() -> None:
    async with repeating() as server:
        choice = strictly(await legacy(server, prompt="é🎉", logprobs=1))["choices"][0]
        none = strictly(await legacy(server, prompt="a", logprobs=0))["choices"][0]
        unasked = strictly(await legacy(server, prompt="a"))["choices"][0]
    assert choice["logprobs"] == {
        "tokens": ["é", "bytes:\\xf0\\x9f", "bytes:\\x8e\\x89"],
        "token_logprobs": [-0.25] * 3,
        "top_logprobs": [
            {"é": -0.25},
            {"bytes:\\xf0\\x9f": -0.25},
            {"bytes:\\x8e\\x89": -0.25},
        ],
        "text_offset": [0, 1, 1],
    }
    assert none["logprobs"]["top_logprobs"] == [{"a": -0.25}]
    assert unasked["logprobs"] is None


async def test_the_official_client_reads_legacy_lists() -> None:
    async with repeating() as server:
        sdk = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        async with sdk:
            asked: dict[str, Any] = {"model": "m", "prompt": "one", "logprobs": 5}
            whole = await sdk.completions.create(**asked)
            tokens: list[str] = []
            async for chunk in await sdk.completions.create(**asked, stream=True):
                logprobs = chunk.choices[0].logprobs
                tokens += (logprobs and logprobs.tokens) or []
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert tokens == logprobs.tokens == ["o", "n", "e"]


# --- Responses ---------------------------------------------------------------------------


async def test_responses_report_in_parts_and_events() -> None:
    asked = {"input": PROMPT, "include": INCLUDE, "top_logprobs": 1}
    async with echoing() as server:
        response = await both_responses(server, **asked)
        text = (await server.client.post("/v1/responses", json={**asked, "stream": True})).text
        assert last_call(server).sampling.logprobs == 1
    assert response["top_logprobs"] == 1
    (part,) = response["output"][0]["content"]
    joined = bytes(byte for entry in part["logprobs"] for byte in entry["bytes"])
    assert joined.decode() == part["text"] == PROMPT
    assert part["logprobs"][0]["top_logprobs"] == [{"token": "a", "logprob": -0.25, "bytes": [97]}]
    events = named_events(text)
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert [entry for e in deltas for entry in e["logprobs"]] == part["logprobs"]
    (done,) = (e for e in events if e["type"] == "response.output_text.done")
    assert done["logprobs"] == part["logprobs"]


async def test_responses_without_the_include_have_none() -> None:
    async with echoing() as server:
        for fields in ({}, {"top_logprobs": 3}, {"include": []}):
            response = await both_responses(server, input="ab", **fields)
            assert response["output"][0]["content"][0]["logprobs"] == []
            assert last_call(server).sampling.logprobs is None


async def test_responses_through_the_official_client() -> None:
    asked: dict[str, Any] = {
        "model": "m",
        "input": "x",
        "include": INCLUDE,
        "top_logprobs": 2,
        "tools": [RESPONSES_F],
        "reasoning": {"effort": "low"},
    }
    async with answering(f"<think>hm</think>wörld\n{CALL}") as server:
        sdk = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        async with sdk:
            whole: Any = await sdk.responses.create(**asked)
            async with sdk.responses.stream(**asked) as stream:
                final: Any = await stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    parts = [response.output[1].content[0] for response in (whole, final)]
    assert [entry.to_dict() for entry in parts[0].logprobs] == [
        entry.to_dict() for entry in parts[1].logprobs
    ]
    assert "".join(entry.token for entry in parts[0].logprobs) == parts[0].text


async def test_messages_have_no_such_field() -> None:
    async with echoing() as server:
        body = {**chat_body(PROMPT), "max_tokens": 50}
        assert (await server.client.post("/v1/messages", json=body)).status_code == 200
        assert last_call(server).sampling.logprobs is None
        assert (await server.client.post(CHAT, json=body)).status_code == 200
