"""Reasoning in chat completions: on, off, told apart from the answer, counted."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from http_harness import CHAT, Harness, chat_body, events_of, text_of
from scripted_text import tagged_text, writing

pytestmark = pytest.mark.anyio

TEXT = tagged_text()
ANSWER = "<think>\nLet me see.\n</think>\n\nIt is four."
ON = {"reasoning_effort": "low"}


def serving(answer: str = ANSWER, **fields: Any) -> Harness:
    return Harness(writing(TEXT, answer, **fields), texts=(TEXT,))


def prompts(server: Harness) -> list[str]:
    read = TEXT.tokenizer.token_bytes
    ids = (memoryview(submit.prompt).cast("i") for submit in server.models[0].submits())
    return [b"".join(map(read, prompt)).decode() for prompt in ids]


@pytest.mark.parametrize("tokens_per_step", [1, 5, 1000])
async def test_stream_and_whole_answer_agree(tokens_per_step: int) -> None:
    async with serving(tokens_per_step=tokens_per_step) as server:
        body = (await server.ask("2+2", **ON)).json()
        options = {"include_usage": True}
        streamed = await server.ask("2+2", **ON, stream=True, stream_options=options)
        events = events_of(streamed.text)
    message = body["choices"][0]["message"]
    assert message["content"].strip() == "It is four."
    assert message["reasoning_content"].strip() == "Let me see."
    assert message["reasoning"] == message["reasoning_content"]
    deltas = [event["choices"][0]["delta"] for event in events[:-3]]
    for key in ("reasoning_content", "reasoning"):
        assert "".join(d.get(key, "") for d in deltas) == message["reasoning_content"]
    assert text_of(events) == message["content"]
    assert events[-2]["usage"] == body["usage"]
    details = body["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < body["usage"]["completion_tokens"]


async def test_no_reasoning_no_keys() -> None:
    async with serving("It is four.") as server:
        body = (await server.ask("2+2", **ON)).json()
    assert body["choices"][0]["message"].keys() == {"role", "content", "refusal"}
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_an_answer_that_is_all_reasoning_has_empty_content() -> None:
    async with serving() as server:
        body = (await server.ask("2+2", **ON, max_tokens=8)).json()
        events = events_of((await server.ask("2+2", **ON, max_tokens=8, stream=True)).text)
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"]
    assert events[-3]["choices"][0]["delta"] == {"content": ""}
    assert events[-2]["choices"][0]["delta"] == {}


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, True),
        ({"reasoning_effort": "never heard of"}, True),
        ({"reasoning": {"effort": "high"}}, True),
        ({"reasoning": {"enabled": False}}, False),
        ({"reasoning": {}}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, True),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "high"}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"}, False),
    ],
)
async def test_the_prompt_thinks_or_not(fields: dict[str, Any], thinks: bool) -> None:
    async with serving() as server:
        assert (await server.ask("2+2", **fields)).status_code == 200
        (prompt,) = prompts(server)
    assert prompt.endswith("<think>\n\n</think>\n\n") != thinks


async def test_reasoning_of_earlier_turns_is_taken_back_under_either_name() -> None:
    for key in ("reasoning_content", "reasoning"):
        messages = [
            {"role": "user", "content": "2+2"},
            {"role": "assistant", "content": None, key: "earlier thoughts"},
            {"role": "tool", "content": "r", "tool_call_id": "c"},
        ]
        async with serving() as server:
            response = await server.client.post(CHAT, json={"messages": messages})
            assert response.status_code == 200, response.text
            assert "earlier thoughts" in prompts(server)[0]


async def test_stop_strings_do_not_cut_tags_and_hold_in_both_channels() -> None:
    async with serving() as server:
        for stop, reasoning in (("is four", "Let me see."), ("me s", "Let ")):
            body = (await server.ask("x", **ON, stop=stop)).json()
            message = body["choices"][0]["message"]
            assert message["reasoning_content"].strip("\n") == reasoning
            assert body["choices"][0]["finish_reason"] == "stop"
            events = events_of((await server.ask("x", **ON, stop=stop, stream=True)).text)
            assert text_of(events) == message["content"]


async def test_the_official_clients_stream_helper_collects_the_unstreamed_reply() -> None:
    async with serving() as server:
        sdk = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        async with sdk:
            asked: dict[str, Any] = {"model": "m", **chat_body("x"), **ON}
            whole = await sdk.chat.completions.create(**asked)
            async with sdk.chat.completions.stream(**asked) as stream:
                final = await stream.get_final_completion()
    ours, theirs = final.choices[0].message.to_dict(), whole.choices[0].message.to_dict()
    for key in ("content", "reasoning_content", "reasoning", "role"):
        assert ours[key] == theirs[key]
