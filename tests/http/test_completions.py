"""Legacy completions: raw prompts, several prompts, streams; over a real socket."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from http_harness import Harness, events_of
from scripted_text import VOCAB_SIZE, tagged_text, writing

from luce.listener.dialects import openai_completions_wire
from luce.testing.fake_script import FakeScript
from luce.testing.tiny_tokenizer import IM_END_ID, IM_START_ID

pytestmark = pytest.mark.anyio

TEXT = tagged_text()
PATH = "/v1/completions"


def echoing(text: Any = TEXT, **fields: Any) -> Harness:
    """A server whose answer is the prompt."""
    return Harness(FakeScript(vocab_size=VOCAB_SIZE, **fields), texts=(text,))


async def post(server: Harness, prompt: Any, **fields: Any) -> httpx2.Response:
    body = {"prompt": prompt, "max_tokens": 100, **fields}
    return await server.client.post(PATH, json=body)


def prompt_ids(server: Harness) -> list[list[int]]:
    return [memoryview(s.prompt).cast("i").tolist() for s in server.models[0].submits()]


def texts_of(events: list[Any], num_choices: int = 1) -> list[str]:
    texts = [""] * num_choices
    for event in events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts


async def test_whole_answer() -> None:
    async with echoing(cached_tokens=2) as server:
        response = await post(server, "The sky")
        assert response.status_code == 200, response.text
        body = response.json()
    num_tokens = len(TEXT.tokenizer.encode("The sky"))
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", "big")
    assert body["choices"] == [
        {"text": "The sky", "index": 0, "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"] == {
        "prompt_tokens": num_tokens,
        "completion_tokens": num_tokens + 1,
        "total_tokens": 2 * num_tokens + 1,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize("tokens_per_step", [1, 4, 100])
async def test_streamed_text_equals_unstreamed(tokens_per_step: int) -> None:
    async with echoing(tokens_per_step=tokens_per_step) as server:
        for fields in ({}, {"stop": "wör"}, {"max_tokens": 5}):
            whole = (await post(server, "hello wörld 🎉", **fields)).json()
            options = {"include_usage": True}
            streamed = await post(
                server, "hello wörld 🎉", **fields, stream=True, stream_options=options
            )
            events = events_of(streamed.text)
            assert texts_of(events) == [whole["choices"][0]["text"]]
            last = events[-3]["choices"][0]
            assert last == {**whole["choices"][0], "text": ""}
            assert events[-2]["choices"] == []
            assert events[-2]["usage"] == whole["usage"]
            assert events[-1] == "[DONE]"
            assert {event["object"] for event in events[:-1]} == {"text_completion"}
            assert len({(e["id"], e["created"], e["model"]) for e in events[:-1]}) == 1
        await server.idle()


async def test_b15_no_usage_unless_asked_for() -> None:
    async with echoing() as server:
        for options in (None, {"include_usage": False}):
            events = events_of((await post(server, "x", stream=True, stream_options=options)).text)
            assert all(event["choices"] and "usage" not in event for event in events[:-1])


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", [IM_START_ID, *TEXT.tokenizer.encode("Hi")]),
        ("<|im_start|>Hi", [IM_START_ID, *TEXT.tokenizer.encode("Hi")]),
        ("", [IM_START_ID]),
        ([72, 73], [72, 73]),
    ],
)
async def test_b45_one_begin_token_if_the_model_wants_it(prompt: Any, expected: Any) -> None:
    wants = tagged_text(add_bos=True)
    async with echoing(wants) as server:
        assert (await post(server, prompt)).status_code == 200
        assert prompt_ids(server) == [expected]


async def test_b45_none_if_it_does_not_and_control_texts_are_their_tokens() -> None:
    async with echoing() as server:
        assert (await post(server, "Hi<|im_end|>")).status_code == 200
        assert prompt_ids(server) == [[*TEXT.tokenizer.encode("Hi"), IM_END_ID]]
        assert server.models[0].submits()[0].sampling.stop_token_ids == TEXT.stop_token_ids


async def test_tags_and_calls_stay_text() -> None:
    answer = '<think>no</think><tool_call>{"name": "f", "arguments": {}}</tool_call>'
    async with Harness(writing(TEXT, f"a{answer}b"), texts=(TEXT,)) as server:
        (choice,) = (await post(server, "x")).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["text"].startswith("a")
    assert choice["text"].endswith("b")
    assert '{"name": "f", "arguments": {}}' in choice["text"]


async def test_several_prompts_are_several_choices() -> None:
    prompts = ["first one", "second", "third"]
    ids = [TEXT.tokenizer.encode(prompt) for prompt in prompts]
    async with echoing() as server:
        for given in (prompts, ids):
            whole = (await post(server, given)).json()
            assert [choice["text"] for choice in whole["choices"]] == prompts
            assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
            assert whole["usage"]["prompt_tokens"] == sum(map(len, ids))
            events = events_of((await post(server, given, stream=True)).text)
            assert texts_of(events, 3) == prompts
            assert events[0]["choices"][0]["index"] == 0
            assert events.count("[DONE]") == 1
        await server.idle()


async def test_several_answers_to_each_prompt() -> None:
    async with echoing() as server:
        whole = (await post(server, ["a", "b"], n=2, seed=5, temperature=1)).json()
        assert [choice["text"] for choice in whole["choices"]] == ["a", "a", "b", "b"]
        assert whole["usage"]["prompt_tokens"] == 2
        assert whole["usage"]["completion_tokens"] == 8
        assert [s.sampling.seed for s in server.models[0].submits()] == [5, 6, 5, 6]


async def test_without_max_tokens_it_is_short_as_the_api_says() -> None:
    async with echoing() as server:
        response = await server.client.post(PATH, json={"prompt": "x" * 50})
        assert response.json()["choices"][0]["finish_reason"] == "length"
        assert response.json()["usage"]["completion_tokens"] == 16


async def test_b01_null_is_absent_everywhere_but_in_the_prompt() -> None:
    names = openai_completions_wire.CompletionRequest.__struct_fields__
    async with echoing() as server:
        response = await server.client.post(PATH, json={**dict.fromkeys(names), "prompt": "x"})
        assert response.status_code == 200, response.text
        response = await server.client.post(PATH, json={"prompt": None})
        assert response.json()["error"]["param"] == "prompt"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt"),
    ({"prompt": ["a", [5]]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [VOCAB_SIZE]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [2**70]}, "prompt"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": ["a"] * 9}, "prompt"),
    ({"prompt": ["a", "b", "c"], "n": 3}, "prompt"),
    ({"n": 9}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"echo": True}, "echo"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"best_of": 3, "n": 2}, "best_of"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_object"}, "grammar": "start: /a/"}, "grammar"),
    ({"guided_choice": ["a"]}, "guided_choice"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": "2"}, "logprobs"),
    ({"logprobs": 2.5}, "logprobs"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 101}, "min_tokens"),
    ({"echo": "yes"}, "echo"),
    ({"suffix": 5}, "suffix"),
    ({"best_of": "x"}, "best_of"),
    ({"user": 5}, "user"),
    ({"metadata": "x"}, "metadata"),
    ({"store": "x"}, "store"),
    ({"service_tier": 5}, "service_tier"),
    ({"prompt_cache_key": 5}, "prompt_cache_key"),
    ({"safety_identifier": 5}, "safety_identifier"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_wrong_or_not_served_is_named(stream: bool) -> None:
    async with echoing() as server:
        for fields, param in WRONG:
            response = await post(server, **{"prompt": "x", "stream": stream, **fields})
            assert response.status_code == 400, (fields, response.text)
            assert response.json()["error"]["param"] == param, fields
        response = await server.client.post(PATH, json={})
        assert response.json()["error"]["param"] == "prompt"
        assert server.models[0].submits() == []
        await server.idle()


async def test_asking_for_nothing_is_fine() -> None:
    async with echoing() as server:
        fields = {"echo": False, "suffix": "", "best_of": 1, "logprobs": False, "user": "me"}
        assert (await post(server, "x", **fields)).status_code == 200
        for field in ASKS_FOR_NOTHING:
            answer = await post(server, "x", **field)
            assert answer.status_code == 200, (field, answer.text)


ASKS_FOR_NOTHING: list[dict[str, Any]] = [
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"},
    {"tools": [], "tool_choice": "auto"},
    {"functions": [{"name": "f"}], "function_call": "none"},
    {"reasoning": {"enabled": False, "effort": None}},
    {"reasoning": {"effort": "none"}, "reasoning_effort": "none"},
    {"thinking": {"type": "disabled"}, "top_logprobs": 0},
    {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    {"chat_template_kwargs": {}},
]


async def test_the_official_client() -> None:
    async with echoing() as server:
        sdk = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        async with sdk:
            asked: dict[str, Any] = {"model": "m", "prompt": ["one", "two"], "max_tokens": 50}
            whole = await sdk.completions.create(**asked)
            texts = {0: "", 1: ""}
            async for chunk in await sdk.completions.create(**asked, stream=True):
                texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {choice.index: choice.text for choice in whole.choices}
    assert whole.choices[1].text == "two"


def test_every_field_of_the_api_has_its_place() -> None:
    from openai.types import completion_create_params as params

    known = set(params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    ours = set(openai_completions_wire.CompletionRequest.__struct_fields__)
    assert known <= ours
    assert ours > openai_completions_wire.NO_EFFECT
    assert set(openai_completions_wire.UNSERVED) < ours
    served = openai_completions_wire.SERVED
    assert not served & openai_completions_wire.NO_EFFECT
