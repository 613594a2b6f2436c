"""What the official clients send for formats and forced calls, and what they make of answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from http_harness import Harness
from messages_client import CALL
from pydantic import BaseModel
from reporting_text import ReportingText, last_call
from scripted_text import tagged_text, writing

from luce.text.call import JsonFormat, NamedTool

pytestmark = pytest.mark.anyio

ANSWER = '{"city": "Lima", "people": 11}'
USER: Any = [{"role": "user", "content": "where?"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Place(BaseModel):
    city: str
    people: int


LIMA = Place(city="Lima", people=11)


@asynccontextmanager
async def answering(answer: str) -> AsyncIterator[Harness]:
    text = tagged_text()
    async with Harness(writing(text, answer), texts=(ReportingText(text),)) as server:  # type: ignore[arg-type]
        yield server


def openai_sdk(server: Harness) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0)


def anthropic_sdk(server: Harness) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0)


def names_of_schema(server: Harness) -> set[str]:
    """The properties that the last answer had to have."""
    given = last_call(server).answer_format
    assert isinstance(given, JsonFormat)
    assert given.schema is not None
    return set(given.schema["properties"])


async def test_chat_parses_a_model_class() -> None:
    async with answering(ANSWER) as server, openai_sdk(server) as sdk:
        asked: Any = {"model": "m", "messages": USER, "response_format": Place}
        whole = await sdk.chat.completions.parse(**asked)
        assert names_of_schema(server) == {"city", "people"}
        async with sdk.chat.completions.stream(**asked) as stream:
            final = await stream.get_final_completion()
    assert whole.choices[0].message.parsed == final.choices[0].message.parsed == LIMA


async def test_chat_json_mode() -> None:
    async with answering(ANSWER) as server, openai_sdk(server) as sdk:
        asked: Any = {"model": "m", "messages": USER, "response_format": {"type": "json_object"}}
        whole = await sdk.chat.completions.create(**asked)
        assert last_call(server).answer_format == JsonFormat(None)
    assert whole.choices[0].message.content == ANSWER


async def test_an_answer_cut_short_is_the_clients_own_error() -> None:
    async with answering(ANSWER) as server, openai_sdk(server) as sdk:
        asked: Any = {"model": "m", "messages": USER, "response_format": Place, "max_tokens": 3}
        with pytest.raises(openai.LengthFinishReasonError):
            await sdk.chat.completions.parse(**asked)


@pytest.mark.parametrize(
    ("choice", "ours"),
    [
        ("required", "required"),
        ({"type": "function", "function": {"name": "f"}}, NamedTool("f")),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
            "required",
        ),
    ],
)
async def test_chat_forces_a_strict_call(choice: Any, ours: Any) -> None:
    functions = [{"name": name, "parameters": SCHEMA, "strict": True} for name in ("g", "f")]
    tools = [{"type": "function", "function": function} for function in functions]
    async with answering(CALL) as server, openai_sdk(server) as sdk:
        asked: Any = {"model": "m", "messages": USER, "tools": tools, "tool_choice": choice}
        whole = await sdk.chat.completions.create(**asked)
        call = last_call(server)
        async with sdk.chat.completions.stream(**asked) as stream:
            final = await stream.get_final_completion()
    assert call.tool_choice == ours
    assert call.tools[-1].is_strict
    is_allowed = isinstance(choice, dict) and choice["type"] == "allowed_tools"
    assert [tool.name for tool in call.tools] == (["f"] if is_allowed else ["g", "f"])
    for answer in (whole, final):
        assert answer.choices[0].finish_reason == "tool_calls"
        (made,) = answer.choices[0].message.tool_calls or ()
        assert (made.function.name, made.function.arguments) == ("f", '{"a": 1}')  # type: ignore[union-attr]


async def test_responses_parses_a_model_class() -> None:
    async with answering(ANSWER) as server, openai_sdk(server) as sdk:
        whole = await sdk.responses.parse(model="m", input="where?", text_format=Place)
        assert names_of_schema(server) == {"city", "people"}
        async with sdk.responses.stream(model="m", input="where?", text_format=Place) as stream:
            final = await stream.get_final_response()
    assert whole.output_parsed == final.output_parsed == LIMA
    text: Any = whole.text
    assert text.format.to_dict()["schema"]["required"] == ["city", "people"]


@pytest.mark.parametrize(
    ("choice", "ours"),
    [
        ("required", "required"),
        ({"type": "function", "name": "f"}, NamedTool("f")),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}],
            },
            "required",
        ),
    ],
)
async def test_responses_force_a_strict_call(choice: Any, ours: Any) -> None:
    tools: Any = [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}]
    async with answering(CALL) as server, openai_sdk(server) as sdk:
        asked: Any = {"model": "m", "input": "x", "tools": tools, "tool_choice": choice}
        whole = await sdk.responses.create(**asked)
        call = last_call(server)
        async with sdk.responses.stream(**asked) as stream:
            final = await stream.get_final_response()
    assert (call.tool_choice, call.tools[0].is_strict) == (ours, True)
    for answer in (whole, final):
        assert [item.type for item in answer.output] == ["function_call"]
    echoed: Any = whole.tool_choice
    assert (echoed if isinstance(echoed, str) else echoed.to_dict()) == choice


async def test_messages_parse_a_model_class() -> None:
    async with answering(ANSWER) as server, anthropic_sdk(server) as sdk:
        asked: Any = {"model": "m", "max_tokens": 99, "messages": USER, "output_format": Place}
        whole = await sdk.messages.parse(**asked)
        assert names_of_schema(server) == {"city", "people"}
        async with sdk.messages.stream(**asked) as stream:
            final = await stream.get_final_message()
    assert whole.parsed_output == final.parsed_output == LIMA


@pytest.mark.parametrize(
    ("choice", "ours"),
    [
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "f", "disable_parallel_tool_use": True}, NamedTool("f")),
    ],
)
async def test_messages_force_a_strict_call(choice: Any, ours: Any) -> None:
    tools: Any = [{"name": "f", "input_schema": SCHEMA, "strict": True}]
    async with answering(CALL) as server, anthropic_sdk(server) as sdk:
        asked: Any = {"model": "m", "max_tokens": 99, "messages": USER, "tools": tools}
        whole = await sdk.messages.create(**asked, tool_choice=choice)
        call = last_call(server)
        async with sdk.messages.stream(**asked, tool_choice=choice) as stream:
            final = await stream.get_final_message()
    assert (call.tool_choice, call.tools[0].is_strict) == (ours, True)
    assert call.parallel_tool_calls == (choice["type"] == "any")
    for message in (whole, final):
        assert message.stop_reason == "tool_use"
        assert [getattr(block, "input", None) for block in message.content] == [{"a": 1}]


async def test_both_clients_know_the_requests_id() -> None:
    async with answering("ok") as server:
        async with anthropic_sdk(server) as sdk:
            message = await sdk.messages.create(model="m", max_tokens=9, messages=USER)
            with pytest.raises(anthropic.BadRequestError) as caught:
                await sdk.messages.create(model="m", max_tokens=0, messages=USER)
        async with openai_sdk(server) as other:
            completion = await other.chat.completions.create(model="m", messages=USER)
    assert message._request_id
    assert caught.value.request_id
    assert message._request_id != caught.value.request_id
    assert completion._request_id
