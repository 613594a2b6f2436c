"""OpenAI's official Responses client against our server: it accumulates what we meant."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from http_harness import Harness
from messages_client import CALL, CALL_2, call
from responses_client import PATCH, F, serving

from luce.listener.dialects import responses_wire
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

ITEM_DONE = "response.output_item.done"


@asynccontextmanager
async def sdk(server: Harness) -> AsyncIterator[Any]:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    async with client:
        yield client


async def both(client: Any, **fields: Any) -> Any:
    """The whole response; fails if the streamed one, or its items, are others."""
    asked = {"model": "big", "input": "hello wörld", **fields}
    whole = await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        items = [event.item async for event in stream if event.type == ITEM_DONE]
        streamed = await stream.get_final_response()
    assert _plain(streamed) == _plain(whole)
    assert [item.id for item in items] == [item.id for item in streamed.output]
    return whole


def _plain(response: Any) -> dict[str, Any]:
    plain: dict[str, Any] = response.model_dump(mode="json", exclude_none=True)
    unlike = ("id", "call_id", "parsed", "parsed_arguments")
    output = [
        {key: value for key, value in item.items() if key not in unlike} for item in plain["output"]
    ]
    return {**plain, "id": None, "created_at": None, "output": output}


async def test_text_and_usage() -> None:
    async with Harness(FakeScript(cached_tokens=3)) as server, sdk(server) as client:
        response = await both(client)
        assert response.output_text == "hello wörld"
        assert (response.status, response.model) == ("completed", "big")
        assert response.usage.input_tokens_details.cached_tokens == 3


@pytest.mark.parametrize("reasoning", [{"effort": "low"}, {"effort": "low", "summary": "auto"}])
async def test_reasoning_text_and_several_calls(reasoning: dict[str, str]) -> None:
    answer = f"<think>hm</think>ok\n{CALL}\n{CALL_2}"
    async with serving(answer) as server, sdk(server) as client:
        response = await both(client, tools=[F], reasoning=reasoning)
        kinds = [item.type for item in response.output]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        assert [json.loads(item.arguments) for item in response.output[2:]] == [
            {"a": 1},
            {"a": 22},
        ]
        # The whole output may be sent back as it is.
        output = [item.model_dump(mode="json", exclude_none=True) for item in response.output]
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "done"}
            for item in response.output[2:]
        ]
        await both(client, tools=[F], input=[{"role": "user", "content": "x"}, *output, *results])
        follow = await client.responses.create(
            model="big", input=results, previous_response_id=response.id, tools=[F]
        )
        assert follow.previous_response_id == response.id


async def test_custom_tools() -> None:
    answer = call('{"input": "*** Begin Patch"}', "apply_patch")
    async with serving(answer) as server, sdk(server) as client:
        (item,) = (await both(client, tools=[PATCH])).output
        assert (item.type, item.input) == ("custom_tool_call", "*** Begin Patch")


async def test_kept_responses() -> None:
    async with Harness() as server, sdk(server) as client:
        created = await client.responses.create(model="big", input="hi")
        assert (await client.responses.retrieve(created.id)) == created
        await client.responses.delete(created.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(created.id)


async def test_an_incomplete_answer_has_no_final_response() -> None:
    async with Harness() as server, sdk(server) as client:
        whole = await client.responses.create(model="big", input="hello", max_output_tokens=2)
        assert (whole.status, whole.output_text) == ("incomplete", "he")
        asked = {"model": "big", "input": "hello", "max_output_tokens": 2}
        async with client.responses.stream(**asked) as stream:
            kinds = [event.type async for event in stream]
        assert kinds[-1] == "response.incomplete"


async def test_errors_become_the_sdks_classes() -> None:
    async with Harness(FakeScript(max_ctx=64)) as server, sdk(server) as client:
        create = client.responses.create
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await create(model="m", input="x", temperature=-1)
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model="m", input="x" * 99, stream=True)
        assert caught.value.code == "context_length_exceeded"


def test_every_field_of_the_api_has_its_place() -> None:
    from openai.types.responses import response_create_params as params

    known = set(params.ResponseCreateParamsBase.__annotations__) | {"stream"}
    ours = responses_wire.SERVED | set(responses_wire.UNSERVED) | responses_wire.NO_EFFECT
    assert known - ours == set()
    assert not set(responses_wire.UNSERVED) & responses_wire.NO_EFFECT
