"""What a request forces reaches the worker as a grammar, or is refused by its own name."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from http_harness import Harness, Rules
from messages_client import CALL
from scripted_text import tagged_text, writing

pytestmark = pytest.mark.anyio

TEXT = tagged_text()
USER = {"role": "user", "content": "x"}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    COMPLETIONS: {"prompt": "x"},
    RESPONSES: {"input": "x"},
    MESSAGES: {"messages": [USER], "max_tokens": 99},
}
EACH = pytest.mark.parametrize("path", BODIES)
WITH_TOOLS = pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])


def formatted(path: str, schema: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The fields that ask for a schema, and the path of it."""
    flat = {"type": "json_schema", "name": "n", "schema": schema}
    if path == RESPONSES:
        return {"text": {"format": flat}}, "text.format.schema"
    if path == MESSAGES:
        return {"output_config": {"format": flat}}, "output_config.format.schema"
    nested = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return {"response_format": nested}, "response_format.json_schema.schema"


def with_tool(path: str, schema: dict[str, Any], **fields: Any) -> tuple[dict[str, Any], str]:
    """The fields that offer a tool, and the path of its schema."""
    if path == RESPONSES:
        tool = {"type": "function", "name": "f", "parameters": schema, **fields}
        return {"tools": [tool]}, "tools[0].parameters"
    if path == MESSAGES:
        return {"tools": [{"name": "f", "input_schema": schema, **fields}]}, "tools[0].input_schema"
    function = {"name": "f", "parameters": schema, **fields}
    return (
        {"tools": [{"type": "function", "function": function}]},
        "tools[0].function.parameters",
    )


CHOICES: dict[str, list[Any]] = {
    CHAT: ["required", {"type": "function", "function": {"name": "f"}}],
    RESPONSES: ["required", {"type": "function", "name": "f"}],
    MESSAGES: [{"type": "any"}, {"type": "tool", "name": "f"}],
}


def serving() -> Harness:
    rules = Rules(max_body_bytes=1_000_000)
    return Harness(writing(TEXT, CALL), texts=(TEXT,), rules=rules)


async def ask(server: Harness, path: str, **fields: Any) -> httpx2.Response:
    return await server.client.post(path, json={**BODIES[path], **fields})


def grammar(server: Harness) -> str | None:
    """What the last request is held to."""
    spec = server.models[0].submits()[-1].sampling.grammar
    return None if spec is None else spec.lark


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"type": "string", "pattern": "^(?!x)[^\\p{Cc}]{1,200}$"}, ".pattern"),
    ({"$ref": "#/$defs/missing"}, ".$ref"),
    ({"type": "nonsense"}, ".type"),
]
GOOD: list[dict[str, Any]] = [
    {"type": "string", "pattern": "^hello\\!$"},
    {"type": "string", "pattern": "\\S"},
    {
        "type": "object",
        "properties": {"next": {"$ref": "#/$defs/node"}},
        "$defs": {
            "node": {"type": ["object", "null"], "properties": {"n": {"$ref": "#/$defs/node"}}}
        },
    },
]


@EACH
async def test_b35_schemas_are_followed_or_named(path: str) -> None:
    async with serving() as server:
        for stream in (False, True):
            for schema in GOOD:
                fields, _ = formatted(path, schema)
                response = await ask(server, path, **fields, stream=stream)
                assert response.status_code == 200, response.text
                assert grammar(server)
            for schema, below in BAD:
                fields, param = formatted(path, schema)
                response = await ask(server, path, **fields, stream=stream)
                assert response.status_code == 400, (schema, response.text)
                error = response.json()["error"]
                assert (error["code"], error["param"]) == ("invalid_schema", param + below)
        await server.idle()


@EACH
async def test_b35_large_schemas_take_no_long_time(path: str) -> None:
    """Served or refused, and others are served meanwhile."""
    many = {f"field_{i}": {"type": "string", "description": "d" * 1700} for i in range(60)}
    large: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 65536},
        {"enum": [f"value {i}" for i in range(3000)]},
        {"type": "object", "properties": many, "required": list(many)},
    ]
    async with serving() as server, asyncio.timeout(60):
        for schema in large:
            fields, param = formatted(path, schema)
            asked = asyncio.create_task(ask(server, path, **fields, max_tokens=16))
            assert (await ask(server, path)).status_code == 200
            response = await asked
            assert response.status_code in (200, 400), response.text
            if response.status_code == 400:
                assert response.json()["error"]["param"].startswith(param)
            else:
                assert any(submit.sampling.grammar for submit in server.models[0].submits())


@WITH_TOOLS
async def test_b35_of_a_tool_that_is_not_strict_no_more_is_asked_than_can_be_done(
    path: str,
) -> None:
    async with serving() as server:
        for schema, below in BAD:
            inside = {"type": "object", "properties": {"a": schema}}
            fields, _ = with_tool(path, inside)
            response = await ask(server, path, **fields)
            assert response.status_code == 200, (schema, response.text)
            fields, param = with_tool(path, inside, strict=True)
            response = await ask(server, path, **fields)
            assert response.status_code == 400, (schema, response.text)
            assert response.json()["error"]["param"] == f"{param}.properties.a{below}"


@WITH_TOOLS
async def test_forced_calls_are_held_to_a_grammar(path: str) -> None:
    async with serving() as server:
        fields, _ = with_tool(path, OBJECT)
        assert (await ask(server, path, **fields)).status_code == 200
        assert grammar(server) is None
        for choice in CHOICES[path]:
            response = await ask(server, path, **fields, tool_choice=choice)
            assert response.status_code == 200, response.text
            assert "f" in (grammar(server) or "")
            assert "tool" in response.text


def shown(path: str, response: httpx2.Response) -> tuple[str, str]:
    """All text and arguments that a client sees of an answer, and why it ended."""
    data = response.json()
    if path == CHAT:
        (choice,) = data["choices"]
        calls = choice["message"].get("tool_calls", ())
        text = choice["message"]["content"] or ""
        text += "".join(call["function"]["arguments"] for call in calls)
        return text, choice["finish_reason"]
    if path == RESPONSES:
        texts = [item.get("arguments") or str(item["content"]) for item in data["output"]]
        return "".join(texts), data["incomplete_details"]["reason"]
    texts = [block.get("text") or block["input"]["_raw"] for block in data["content"]]
    return "".join(texts), data["stop_reason"]


@WITH_TOOLS
async def test_a_forced_call_cut_off_by_its_length_shows_no_markup(path: str) -> None:
    fields, _ = with_tool(path, OBJECT)
    most = "max_output_tokens" if path == RESPONSES else "max_tokens"
    num_tokens = len(TEXT.tokenizer.encode_with_specials(CALL.partition("1}")[0]))
    reason = {CHAT: "length", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}[path]
    async with serving() as server:
        for choice in CHOICES[path]:
            for count in (1, 2, num_tokens // 2, num_tokens):
                asked = {**fields, "tool_choice": choice, most: count}
                arguments = '{"a":' if count == num_tokens else ""
                response = await ask(server, path, **asked)
                assert shown(path, response) == (arguments, reason), (count, response.text)
                streamed = await ask(server, path, **asked, stream=True)
                assert "<tool" not in streamed.text
                assert '\\"name' not in streamed.text
                assert f'"{reason}"' in streamed.text
        await server.idle()


@WITH_TOOLS
async def test_strict_tools_are_held_to_a_grammar_without_being_forced(path: str) -> None:
    async with serving() as server:
        fields, _ = with_tool(path, OBJECT, strict=True)
        assert (await ask(server, path, **fields)).status_code == 200
        assert grammar(server)


@EACH
async def test_grammar_and_regex(path: str) -> None:
    async with serving() as server:
        for fields in ({"grammar": "start: /a+/"}, {"regex": "a+"}):
            assert (await ask(server, path, **fields)).status_code == 200
            assert "a+" in (grammar(server) or "")
        for fields in ({"grammar": "start: nothing"}, {"regex": "(?=x)"}, {"regex": "("}):
            response = await ask(server, path, **fields)
            assert response.status_code == 400, (fields, response.text)
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("invalid_schema", next(iter(fields)))


async def test_custom_tools_of_responses() -> None:
    def tool(syntax: str | None, definition: str) -> dict[str, Any]:
        form = {"type": "grammar", "syntax": syntax, "definition": definition}
        return {"tools": [{"type": "custom", "name": "p", "format": form}]}

    async with serving() as server:
        for syntax, definition in (
            ("lark", "start: /[ab]+/ LF\n%import common.LF"),
            ("regex", "[ab]+"),
        ):
            for choice in ("auto", "required", {"type": "custom", "name": "p"}):
                fields = {**tool(syntax, definition), "tool_choice": choice}
                assert (await ask(server, RESPONSES, **fields)).status_code == 200
                assert "[ab]" in (grammar(server) or "")
        assert (
            await ask(server, RESPONSES, **tool("lark", "start: x"), tool_choice="none")
        ).is_success
        for syntax, definition, field in (
            ("regex", "(?=x)", "definition"),
            ("lark", "start: nothing", "definition"),
            ("lark", 'start: "a', "definition"),
            ("lark", 'word: "a"', "definition"),
            ("lark", "start: %json {}", "definition"),
            ("lark", "", "definition"),
            ("ebnf", "start: a", "syntax"),
            (None, "start: a", "syntax"),
        ):
            response = await ask(server, RESPONSES, **tool(syntax, definition))
            assert response.status_code == 400, (definition, response.text)
            error = response.json()["error"]
            assert error["param"] == f"tools[0].format.{field}", error
        # Right, but nothing that can be written inside a call.
        fields = tool("lark", "start: /a[^b]*/ LF\n%import common.LF")
        assert (await ask(server, RESPONSES, **fields)).status_code == 200
        assert "LF" not in (grammar(server) or "")
        response = await ask(server, RESPONSES, **fields, tool_choice="required")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tools[0].format.definition"


@EACH
async def test_lengths_and_reports_reach_the_worker(path: str) -> None:
    fields: dict[str, Any] = {
        CHAT: {"logprobs": True, "top_logprobs": 4},
        COMPLETIONS: {"logprobs": 4},
        RESPONSES: {"include": ["message.output_text.logprobs"], "top_logprobs": 4},
        MESSAGES: {},
    }[path]
    async with serving() as server:
        assert (await ask(server, path, **fields, min_tokens=3)).status_code == 200
        sampling = server.models[0].submits()[-1].sampling
    assert sampling.min_tokens == 3
    assert sampling.logprobs == (None if path == MESSAGES else 4)
