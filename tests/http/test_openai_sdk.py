"""The official client against our server: what it accumulates is what we meant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from http_harness import Harness, Rules

from luce.listener.dialects import openai_wire
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def sdk(server: Harness) -> AsyncIterator[openai.AsyncOpenAI]:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    async with client:
        yield client


async def test_whole_and_streamed_answers_agree() -> None:
    async with Harness(FakeScript(cached_tokens=3)) as server, sdk(server) as client:
        messages = [{"role": "user", "content": "hello wörld"}]
        whole = await client.chat.completions.create(model="big", messages=messages)  # type: ignore[call-overload]
        assert whole.choices[0].message.content == "hello wörld"
        assert whole.usage.prompt_tokens_details.cached_tokens == 3
        async with client.chat.completions.stream(
            model="big",
            messages=messages,  # type: ignore[arg-type]
            stream_options={"include_usage": True},
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "hello wörld"
        assert final.choices[0].message.role == "assistant"
        assert final.choices[0].finish_reason == "stop"
        assert final.usage == whole.usage
        assert final.model == "big"


async def test_models() -> None:
    async with Harness() as server, sdk(server) as client:
        assert [model.id async for model in client.models.list()] == ["big"]
        assert (await client.models.retrieve("big")).owned_by == "luce"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


async def test_errors_become_the_sdks_classes() -> None:
    script = FakeScript(max_concurrency=1, hold_after=0, max_ctx=64)
    async with Harness(script, rules=Rules(queue_limit=0)) as server, sdk(server) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await create(model="m", messages=[{"role": "user", "content": "x"}], temperature=-1)
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model="m", messages=[{"role": "user", "content": "x" * 99}])
        assert caught.value.code == "context_length_exceeded"
        held = await create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
        await server.running(1)
        with pytest.raises(openai.InternalServerError) as overloaded:
            await create(model="m", messages=[{"role": "user", "content": "x"}])
        assert overloaded.value.status_code == 503
        await held.close()
        await server.idle()


async def test_error_in_mid_stream_is_raised_with_its_message() -> None:
    script = FakeScript(reply=[97, 98], fail_error="InternalError")
    async with Harness(script) as server, sdk(server) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )
        with pytest.raises(openai.APIError, match="InternalError"):
            async for _ in stream:
                pass


def test_every_field_of_the_api_has_its_place() -> None:
    from openai.types.chat import completion_create_params as params

    known = set(params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    ours = openai_wire.SERVED | set(openai_wire.UNSERVED) | openai_wire.NO_EFFECT
    assert known - ours == set()
    assert not openai_wire.SERVED & openai_wire.NO_EFFECT
    assert not set(openai_wire.UNSERVED) & openai_wire.NO_EFFECT
