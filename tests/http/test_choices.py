"""Several answers to one chat request: order, sums, capacity, failure."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from http_harness import CHAT, ByteText, Harness, Rules, chat_body, events_of, eventually

from luce.errors import ShuttingDown
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


def by_choice(events: list[Any], num_choices: int) -> list[list[Any]]:
    """Choice chunks of a finished stream, apart by index."""
    apart: list[list[Any]] = [[] for _ in range(num_choices)]
    for event in events[:-1]:
        for choice in event["choices"]:
            apart[choice["index"]].append(choice)
    return apart


async def test_whole_answer() -> None:
    async with Harness(FakeScript(cached_tokens=2)) as server:
        body = (await server.ask("hello", n=3)).json()
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert [c["message"]["content"] for c in body["choices"]] == ["hello"] * 3
        assert [c["finish_reason"] for c in body["choices"]] == ["stop"] * 3
        assert body["usage"]["prompt_tokens"] == 5
        assert body["usage"]["completion_tokens"] == 18
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        await server.idle()


async def test_stream_starts_with_choice_0_and_each_choice_is_whole() -> None:
    script = FakeScript(reply=list(b"a long enough reply"), hold_after=1)
    async with Harness(script) as server:
        options = {"include_usage": True}
        answer = asyncio.create_task(server.ask("hi", n=3, stream=True, stream_options=options))
        await eventually(lambda: len(server.models[0].submits()) == 3)
        server.models[0].worker.release()
        events = events_of((await answer).text)
        await server.idle()
    indexes = [event["choices"][0]["index"] for event in events[:-2]]
    assert indexes[0] == 0
    assert indexes != sorted(indexes), "the choices run at the same time"
    for choices in by_choice(events, 3):
        assert choices[0]["delta"] == {"role": "assistant"}
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        assert text == "a long enough reply"
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
        assert choices[-1]["delta"] == {}
    assert [bool(event["choices"]) for event in events[-3:-1]] == [True, False]
    assert events[-2]["usage"]["completion_tokens"] == 3 * (len("a long enough reply") + 1)
    assert events.count("[DONE]") == 1
    assert len({(event["id"], event["created"], event["model"]) for event in events[:-1]}) == 1


async def test_later_choices_begin_when_the_prompt_is_computed() -> None:
    async with Harness(FakeScript(hold_after=0)) as server:
        (model,) = server.models
        answer = asyncio.create_task(server.ask("hi", n=2))
        await eventually(lambda: len(model.submits()) == 1)
        await asyncio.sleep(0.05)
        assert len(model.submits()) == 1
        model.worker.release()
        await eventually(lambda: len(model.submits()) == 2)
        model.worker.release()
        assert (await answer).status_code == 200


async def test_a_model_with_one_place_gives_the_choices_one_after_the_other() -> None:
    async with Harness(FakeScript(max_concurrency=1)) as server:
        response = await asyncio.wait_for(server.ask("hello", n=4), 60)
        assert len(response.json()["choices"]) == 4
        assert server.models[0].worker.max_in_flight == 1
        await server.idle()


async def test_seeds_go_up_and_ids_differ() -> None:
    async with Harness() as server:
        await server.ask("x", n=3, seed=-1, temperature=1)
        submits = server.models[0].submits()
        assert [s.sampling.seed for s in submits] == [2**64 - 1, 0, 1]
        assert len({s.request_id for s in submits}) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_one_failure_fails_the_whole_request_once(stream: bool) -> None:
    script = FakeScript(reply=[97] * 4, fail_error="InternalError")
    async with Harness(script) as server:
        response = await server.ask("x", n=3, stream=stream)
        if stream:
            events = events_of(response.text)
            assert [event for event in events[:-1] if "error" in event] == [events[-2]]
            assert events[-1] == "[DONE]"
        else:
            assert response.status_code == 500
            assert response.json()["error"]["code"] == "internal_error"
        await server.idle()


async def test_what_is_wrong_is_an_http_status_also_in_a_stream() -> None:
    async with Harness(FakeScript(max_ctx=32)) as server:
        response = await server.ask("x" * 40, n=2, stream=True)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        await server.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_does_not_turn_an_answer_away_that_has_begun(stream: bool) -> None:
    rules = Rules(queue_limit=0)
    async with Harness(FakeScript(max_concurrency=1), rules=rules) as server:
        response = await server.ask("hello", n=3, stream=stream)
        assert response.status_code == 200
        if stream:
            events = events_of(response.text)
            assert events[-1] == "[DONE]"
            ends = [c[-1]["finish_reason"] for c in by_choice(events, 3)]
        else:
            ends = [choice["finish_reason"] for choice in response.json()["choices"]]
        assert ends == ["stop"] * 3
        await server.idle()


async def test_a_client_that_leaves_frees_every_place() -> None:
    async with Harness(FakeScript(reply=[97] * 1000, hold_after=100)) as server:
        body = chat_body("x", n=3, stream=True)
        async with server.client.stream("POST", CHAT, json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await server.running(3)
        await server.idle()
        assert {cancel.reason for cancel in server.models[0].cancels()} == {"client_gone"}


async def test_a_client_that_leaves_the_queue_leaves_nothing_behind() -> None:
    async with Harness(FakeScript(max_concurrency=1, hold_after=0)) as server:
        first = asyncio.create_task(server.ask("first"))
        await server.running(1)
        waiting = asyncio.create_task(server.ask("second", n=2, stream=True))
        await eventually(lambda: server.router.num_waiting == 1)
        waiting.cancel()
        await eventually(lambda: server.router.num_open == 0)
        server.models[0].worker.release()
        assert (await first).status_code == 200
        assert len(server.models[0].submits()) == 1
        await server.idle()


async def test_a_server_that_stops_ends_all_choices() -> None:
    async with Harness(FakeScript(reply=[97] * 1000, hold_after=100)) as server:
        answer = asyncio.create_task(server.ask("x", n=3))
        await server.running(3)
        server.generator.abort_all(ShuttingDown("The server is stopping."))
        response = await answer
        assert (response.status_code, response.json()["error"]["code"]) == (503, "shutting_down")
        await server.idle()


async def test_the_choices_of_an_answer_are_one_models() -> None:
    """A second model has room for choice 1, but an answer names one model only: it waits."""
    scripts = FakeScript(max_concurrency=1, token_delay_s=0.01), FakeScript()
    async with Harness(*scripts, texts=(ByteText(), ByteText())) as server:
        response = await server.ask("hello", n=2)
        assert response.status_code == 200
        assert response.json()["model"] == "big"
        assert [choice["message"]["content"] for choice in response.json()["choices"]] == [
            "hello",
            "hello",
        ]
        assert [len(model.submits()) for model in server.models] == [2, 0]
        await server.idle()


async def test_it_counts_as_one_request() -> None:
    async with Harness() as server:
        await server.ask("hello", n=2)
        (entry,) = (await server.client.get("/status/json")).json()["perf_history"]
        assert (entry["prompt_tokens"], entry["completion_tokens"]) == (5, 12)


async def test_its_rate_is_over_the_time_of_all_choices() -> None:
    script = FakeScript(max_concurrency=1, token_delay_s=0.02, hold_after=1)
    async with Harness(script) as server:
        (model,) = server.models
        asked = asyncio.create_task(server.ask("hello", n=2))
        await eventually(lambda: model.handle.num_decoding == 1)
        model.worker.release()
        await eventually(lambda: len(model.submits()) == 2)
        model.worker.release()
        await asked
        (entry,) = (await server.client.get("/status/json")).json()["perf_history"]
        assert 0 < entry["decode_tok_s"] < 12 / 0.09


async def test_the_official_clients_stream_helper() -> None:
    async with Harness() as server:
        sdk = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)
        async with sdk:
            asked: dict[str, Any] = {"model": "m", **chat_body("hello"), "n": 4}
            whole = await sdk.chat.completions.create(**asked)
            async with sdk.chat.completions.stream(**asked) as stream:
                final = await stream.get_final_completion()
    ours = [(c.index, c.message.content, c.finish_reason) for c in final.choices]
    assert ours == [(c.index, c.message.content, c.finish_reason) for c in whole.choices]
