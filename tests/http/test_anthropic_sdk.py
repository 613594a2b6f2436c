"""Anthropic's official client against our server: what it accumulates is what we meant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from http_harness import Harness, Rules
from messages_client import CALL, CALL_2, THINKING, F, serving

from luce.listener.dialects import anthropic_wire
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

USER: Any = [{"role": "user", "content": "hello wörld"}]


@asynccontextmanager
async def sdk(server: Harness) -> AsyncIterator[Any]:
    client = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
    async with client:
        yield client


async def both(client: Any, **fields: Any) -> Any:
    """The whole message; fails if the streamed one is another."""
    asked = {"model": "big", "max_tokens": 500, "messages": USER, **fields}
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()
    assert _plain(streamed) == _plain(whole)
    return whole


def _plain(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = message.model_dump(mode="json", exclude_none=True)
    content = [
        {key: value for key, value in block.items() if key != "id"} for block in plain["content"]
    ]
    return {**plain, "id": None, "content": content}


async def test_text_and_usage() -> None:
    async with Harness(FakeScript(cached_tokens=3)) as server, sdk(server) as client:
        message = await both(client)
        assert message.content[0].text == "hello wörld"
        assert (message.stop_reason, message.model) == ("end_turn", "big")
        assert message.usage.cache_read_input_tokens == 3
        counted = await client.messages.count_tokens(model="big", messages=USER)
        assert counted.input_tokens == message.usage.input_tokens + 3


async def test_stop_sequences() -> None:
    async with Harness() as server, sdk(server) as client:
        message = await both(client, stop_sequences=["wö"])
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "wö")
        cut = await both(client, max_tokens=2)
        assert (cut.stop_reason, cut.content[0].text) == ("max_tokens", "he")


async def test_thinking_and_several_calls() -> None:
    answer = f"<think>hm</think>ok\n{CALL}\n{CALL_2}"
    async with serving(answer) as server, sdk(server) as client:
        message = await both(client, tools=[F], thinking=THINKING)
        kinds = [block.type for block in message.content]
        assert kinds == ["thinking", "text", "tool_use", "tool_use"]
        assert [block.input for block in message.content[2:]] == [{"a": 1}, {"a": 22}]
        assert message.content[0].signature
        # The whole answer may be sent back as it is.
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
            for block in message.content[2:]
        ]
        turn = {"role": "user", "content": results}
        await both(client, tools=[F], messages=[*USER, message.to_param(), turn])


async def test_beta_requests() -> None:
    async with Harness() as server, sdk(server) as client:
        message = await client.beta.messages.create(
            model="big", max_tokens=50, messages=USER, betas=["effort-2025-11-24"]
        )
        assert message.content[0].text == "hello wörld"


async def test_errors_become_the_sdks_classes() -> None:
    script = FakeScript(max_concurrency=1, hold_after=0)
    async with Harness(script, rules=Rules(queue_limit=0)) as server, sdk(server) as client:
        create = client.messages.create
        with pytest.raises(anthropic.BadRequestError, match="temperature"):
            await create(model="m", max_tokens=5, messages=USER, extra_body={"temperature": -1})
        held = await create(model="m", max_tokens=5, messages=USER, stream=True)
        await server.running(1)
        with pytest.raises(anthropic.APIStatusError) as overloaded:
            await create(model="m", max_tokens=5, messages=USER)
        assert overloaded.value.status_code == 503
        assert overloaded.value.body["error"]["type"] == "overloaded_error"
        await held.close()
        await server.idle()


async def test_error_in_mid_stream_is_raised_with_its_message() -> None:
    script = FakeScript(reply=[97, 98], fail_error="InternalError")
    async with Harness(script) as server, sdk(server) as client:
        async with client.messages.stream(model="m", max_tokens=5, messages=USER) as stream:
            with pytest.raises(anthropic.APIStatusError, match="InternalError"):
                await stream.get_final_message()


def test_every_field_of_the_api_has_its_place() -> None:
    from anthropic.types import message_create_params as params
    from anthropic.types.beta import message_create_params as beta

    known = set(params.MessageCreateParamsBase.__annotations__)
    known |= set(beta.MessageCreateParamsBase.__annotations__) | {"stream"}
    ours = anthropic_wire.SERVED | set(anthropic_wire.UNSERVED) | anthropic_wire.NO_EFFECT
    assert known - ours == set()
    assert not set(anthropic_wire.UNSERVED) & anthropic_wire.NO_EFFECT
