"""Anthropic's Messages over a real socket: answers and streams."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from http_harness import Harness, Rules
from messages_client import (
    BOTH,
    CALL,
    CALL_2,
    CLAUDE_CODE,
    MESSAGES,
    TEXT,
    THINKING,
    USER,
    F,
    ask,
    body_of,
    both,
    call,
    message_of,
    named_events,
    serving,
)
from scripted_text import tagged_text, writing

from luce.testing.fake_script import FakeScript
from luce.text.template import CHATML_TEMPLATE

pytestmark = pytest.mark.anyio


def prompts(server: Harness) -> list[str]:
    asked = (array("i", submit.prompt) for submit in server.models[0].submits())
    return [b"".join(map(TEXT.tokenizer.token_bytes, ids)).decode() for ids in asked]


# --- answers -----------------------------------------------------------------------------


async def test_a_plain_answer() -> None:
    async with Harness(FakeScript(cached_tokens=2)) as server:
        message = await both(server, messages=[{"role": "user", "content": "hello"}])
        assert message.pop("id").startswith("msg_")
        assert message == {
            "type": "message",
            "role": "assistant",
            "model": "big",
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 3,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 2,
                "output_tokens": 6,
                "output_tokens_details": {"thinking_tokens": 0},
            },
        }
        await server.idle()


async def test_the_first_event_already_counts_the_prompt() -> None:
    async with Harness(FakeScript(cached_tokens=2)) as server:
        asked = {"messages": [{"role": "user", "content": "hello"}]}
        events = named_events((await ask(server, **asked, stream=True)).text)
        counted = (await ask(server, BOTH[1], **asked)).json()["input_tokens"]
    usage = events[0]["message"]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted == 5


async def test_an_empty_answer_has_no_block() -> None:
    async with serving("") as server:
        message = await both(server)
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


async def test_thinking_comes_first_and_is_signed() -> None:
    async with serving("<think>\nhm, well\n</think>\n\nIt is 4.") as server:
        message = await both(server, thinking=THINKING)
    thinking, text = message["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "hm, well")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "It is 4."}
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0


@pytest.mark.parametrize(
    ("fields", "is_on"),
    [
        ({}, False),
        ({"thinking": None}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, True),
        ({"thinking": THINKING}, True),
        ({"output_config": {"effort": "high"}}, False),
        ({"reasoning_effort": "low"}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
    ],
)
async def test_the_template_is_told_of_thinking(fields: dict[str, Any], is_on: bool) -> None:
    async with serving("x") as server:
        assert (await ask(server, **fields)).status_code == 200
        prompt = prompts(server)[0]
    # Qwen 3's template closes thinking beforehand when it is off.
    assert prompt.endswith("</think>\n\n") is not is_on


async def test_several_calls_between_texts() -> None:
    answer = f"Both:\n{CALL}\n{CALL_2}"
    async with serving(answer) as server:
        message = await both(server, tools=[F])
    text, *calls = message["content"]
    assert text == {"type": "text", "text": "Both:"}
    assert [(block["name"], block["input"]) for block in calls] == [
        ("f", {"a": 1}),
        ("f", {"a": 22}),
    ]
    assert message["stop_reason"] == "tool_use"


async def test_one_call_only_when_asked() -> None:
    async with serving(CALL + CALL_2) as server:
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        message = await both(server, tools=[F], tool_choice=choice)
    assert len(message["content"]) == 1


async def test_a_call_that_was_cut_off_is_no_tool_use() -> None:
    async with serving(call('{"a": 12345678}'), finish="length") as server:
        script = server.models[0].worker.script
        assert script.reply is not None
        cut = len(script.reply) - 10
        message = await both(server, tools=[F], max_tokens=cut)
    assert message["stop_reason"] == "max_tokens"
    assert message["content"][-1]["type"] == "tool_use"
    assert message["content"][-1]["input"].keys() == {"_raw"}


async def test_max_tokens_cuts() -> None:
    async with Harness() as server:
        message = await both(server, messages=[{"role": "user", "content": "abcdef"}], max_tokens=3)
    assert (message["stop_reason"], message["content"][0]["text"]) == ("max_tokens", "abc")


async def test_b09_a_large_max_tokens_is_clamped() -> None:
    async with Harness(FakeScript(max_ctx=256)) as server:
        assert (await ask(server, max_tokens=32000)).status_code == 200
        assert server.models[0].submits()[0].sampling.max_tokens == 254


@pytest.mark.parametrize("name", ["stop_sequences", "stop"])
async def test_stop_sequences_are_told(name: str) -> None:
    async with Harness(FakeScript(tokens_per_step=3)) as server:
        text = "alpha beta gamma"
        message = await both(
            server, messages=[{"role": "user", "content": text}], **{name: ["beta gam", ""]}
        )
    assert message["content"] == [{"type": "text", "text": "alpha "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "beta gam")


async def test_sampling_reaches_the_worker() -> None:
    async with Harness() as server:
        await ask(server, temperature=0.5, top_p=0.9, top_k=7, seed=3, presence_penalty=1)
        sampling = server.models[0].submits()[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.seed, sampling.presence_penalty) == (3, 1)


# --- what Claude Code sends --------------------------------------------------------------


HEADERS = {
    "x-api-key": "none",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,effort-2025-11-24",
    "accept": "application/json",
}


async def test_claude_codes_request() -> None:
    async with serving("Fine.") as server:
        probe = await server.client.head("/")
        assert (probe.status_code, probe.content) == (200, b"")
        body = body_of(**CLAUDE_CODE, stream=True)
        response = await server.client.post(f"{MESSAGES}?beta=true", json=body, headers=HEADERS)
        assert message_of(named_events(response.text))["content"][0]["text"] == "Fine."
        count = await server.client.post(f"{BOTH[1]}?beta=true", json=body, headers=HEADERS)
        num_tokens = len(server.models[0].submits()[0].prompt) // 4
        prompt = prompts(server)[0]
    assert count.json() == {"input_tokens": num_tokens}
    assert "billing" not in prompt
    assert "You are an agent." in prompt
    # The late note stands where it was said.
    assert prompt.index("a.py") < prompt.index("5000 tokens left")


async def test_the_prompt_is_a_prefix_of_the_next_turns() -> None:
    # Templates of models that think leave old thoughts out; this one knows of none.
    text = tagged_text(chat_template=CHATML_TEMPLATE)
    first = CLAUDE_CODE
    system = [{**first["system"][0], "text": "x-anthropic-billing-header: cch=9;"}]
    answered = [{"role": "assistant", "content": [{"type": "text", "text": "Fine."}]}, USER]
    second = {
        **first,
        "system": [*system, {"type": "text", "text": "You are an agent."}],
        "messages": [*first["messages"], *answered],
    }
    async with Harness(writing(text, "Fine."), texts=(text,)) as server:
        for turn in (first, second):
            assert (await ask(server, **turn)).status_code == 200
        one, two = prompts(server)
    generation = one.rindex("<|im_start|>assistant")
    assert two.startswith(one[:generation])


# --- cases -------------------------------------------------------------------------------


async def test_b01_null_is_absent() -> None:
    names = ("system", "tools", "tool_choice", "thinking", "stop_sequences", "stream", "metadata")
    names += ("temperature", "top_p", "top_k", "output_config", "service_tier", "model", "seed")
    async with Harness() as server:
        assert (await ask(server, **dict.fromkeys(names))).status_code == 200


async def test_b11_images_are_refused_in_anthropics_shape() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "i"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    async with Harness() as server:
        for path in BOTH:
            for block in (image, result, {"type": "document", "source": {}}):
                response = await ask(server, path, messages=[{"role": "user", "content": [block]}])
                assert response.status_code == 400
                error = response.json()["error"]
                assert error["type"] == "invalid_request_error"
                assert error["param"].startswith("messages[0].content[0]")
            assert (
                "images"
                in (await ask(server, path, messages=[{"role": "user", "content": [image]}])).text
            )
        assert (await ask(server)).status_code == 200


async def test_b19_no_part_of_a_stop_sequence_leaks() -> None:
    async with Harness() as server:
        response = await ask(
            server,
            messages=[{"role": "user", "content": "alpha beta gamma"}],
            stop_sequences=["beta gam"],
            stream=True,
        )
    assert "beta" not in response.text.split("message_delta")[0]


async def test_b21_a_silent_stream_is_pinged() -> None:
    rules = Rules(keep_alive_interval_s=0.05)
    async with Harness(FakeScript(hold_after=0), rules=rules) as server:
        text = await server.stream_held_until(MESSAGES, body_of(), '{"type":"ping"}')
    assert not text.startswith(":")
    assert "\n:" not in text
    events = named_events(text)
    assert sum(event["type"] == "ping" for event in events) >= 3
    assert message_of(events)["content"][0]["text"] == "hi"


async def test_b23_bad_input_to_a_stream_is_a_real_status() -> None:
    async with Harness(FakeScript(max_ctx=64)) as server:
        long = [{"role": "user", "content": "x" * 2000}]
        whole = await ask(server, messages=long)
        streamed = await ask(server, messages=long, stream=True)
    assert (whole.status_code, streamed.status_code) == (400, 400)
    assert streamed.headers["content-type"] == "application/json"
    assert whole.json()["error"] == streamed.json()["error"]
    assert whole.json()["error"]["code"] == "context_length_exceeded"


async def test_b33_no_calls_when_no_tool_may_be_called() -> None:
    async with serving(CALL) as server:
        message = await both(server, tools=[F], tool_choice={"type": "none"})
        assert message["stop_reason"] == "end_turn"
        assert [block["type"] for block in message["content"]] == ["text"]
        called = await both(server, tools=[F], tool_choice={"type": "auto"})
        assert called["stop_reason"] == "tool_use"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "f"}])
async def test_b33_a_forced_call_is_a_tool_use(choice: dict[str, Any]) -> None:
    async with serving(CALL) as server:
        message = await both(server, tools=[F], tool_choice=choice)
        assert message["stop_reason"] == "tool_use"
        assert [block["type"] for block in message["content"]] == ["tool_use"]
        counts = [
            (await ask(server, BOTH[1], tools=[F], **fields)).json()
            for fields in ({}, {"tool_choice": choice})
        ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("tokens_per_step", [1, 4, 1000])
async def test_b37_blocks_are_never_mixed(tokens_per_step: int) -> None:
    answer = f"<think>why</think>ok\n{CALL}\n{CALL_2}\nand done"
    async with serving(answer, tokens_per_step=tokens_per_step) as server:
        message = await both(server, tools=[F], thinking=THINKING)
    kinds = [block["type"] for block in message["content"]]
    assert kinds[:4] == ["thinking", "text", "tool_use", "tool_use"]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["output_tokens"] > 10
