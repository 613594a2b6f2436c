"""Faults that a text side finds in schemas and grammars: 400 with the client's own field."""

from __future__ import annotations

from typing import Any

import pytest
from http_harness import ByteText, Harness

from luce.errors import InvalidGrammar, InvalidRequest
from luce.testing.fake_script import FakeScript
from luce.text.call import GenerationCall

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "x"}
SCHEMA = {"type": "object", "properties": {"a": {"pattern": "(?=x)"}}}
FLAT = {"type": "json_schema", "name": "n", "schema": SCHEMA}
NESTED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
REGEX = {"type": "grammar", "syntax": "regex", "definition": "(?=x)"}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

FORMAT = "answer_format.properties.a.pattern"
TOOL = "tools[0].parameters.properties.a.pattern"
BELOW = ".properties.a.pattern"


class FaultyText(ByteText):
    """Finds the same fault in every call."""

    fault: str = ""

    def prepare(self, call: GenerationCall, limit: int | None = None) -> Any:
        raise InvalidGrammar("pattern: look-around is not supported.", param=self.fault)


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": True}}


CASES: list[tuple[str, str, dict[str, Any], str]] = [
    (CHAT, FORMAT, {"response_format": NESTED}, f"response_format.json_schema.schema{BELOW}"),
    (CHAT, "answer_format", {"grammar": "start:"}, "grammar"),
    (CHAT, "answer_format", {"regex": "("}, "regex"),
    (CHAT, TOOL, {"tools": [function("f")]}, f"tools[0].function.parameters{BELOW}"),
    (
        CHAT,
        TOOL,
        {
            "tools": [function("f"), function("g")],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "g"}}],
                },
            },
        },
        f"tools[1].function.parameters{BELOW}",
    ),
    (CHAT, "messages", {}, "messages"),
    (
        COMPLETIONS,
        FORMAT,
        {"response_format": NESTED},
        f"response_format.json_schema.schema{BELOW}",
    ),
    (RESPONSES, FORMAT, {"text": {"format": FLAT}}, f"text.format.schema{BELOW}"),
    (
        RESPONSES,
        TOOL,
        {
            "tools": [
                {"type": "web_search"},
                {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True},
            ]
        },
        f"tools[1].parameters{BELOW}",
    ),
    (
        RESPONSES,
        "tools[0].parameters.properties.input.pattern",
        {"tools": [{"type": "custom", "name": "p", "format": REGEX}]},
        "tools[0].format.definition",
    ),
    (RESPONSES, "messages", {}, "input"),
    (
        MESSAGES,
        FORMAT,
        {"output_config": {"format": FLAT}},
        f"output_config.format.schema{BELOW}",
    ),
    (MESSAGES, FORMAT, {"output_format": FLAT}, f"output_format.schema{BELOW}"),
    (
        MESSAGES,
        TOOL,
        {"tools": [{"name": "f", "input_schema": SCHEMA, "strict": True}]},
        f"tools[0].input_schema{BELOW}",
    ),
]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    COMPLETIONS: {"prompt": "x"},
    RESPONSES: {"input": "x"},
    MESSAGES: {"messages": [USER], "max_tokens": 9},
}


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 2}])
async def test_b35_a_fault_is_named_as_the_client_wrote_it(fields: dict[str, Any]) -> None:
    text = FaultyText()
    async with Harness(FakeScript(), texts=(text,)) as server:
        for path, fault, asked, param in CASES:
            if fields.get("n") and path in (RESPONSES, MESSAGES):
                continue
            text.fault = fault
            response = await server.client.post(path, json={**BODIES[path], **asked, **fields})
            assert response.status_code == 400, (path, asked, response.text)
            assert response.headers["content-type"] == "application/json"
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("invalid_schema", param)
        assert server.models[0].submits() == []
        await server.idle()


async def test_the_same_fault_in_two_requests_keeps_its_name() -> None:
    """The error of a shared place must not be renamed twice."""
    text = FaultyText()
    text.fault = "answer_format"
    async with Harness(FakeScript(), texts=(text,)) as server:
        params = [(await server.ask("x", regex="(")).json()["error"]["param"] for _ in range(2)]
    assert params == ["regex", "regex"]


class StrangeText(ByteText):
    """Finds something that has no field."""

    def prepare(self, call: GenerationCall, limit: int | None = None) -> Any:
        raise InvalidRequest("no.")


async def test_a_fault_without_a_field_has_none() -> None:
    async with Harness(FakeScript(), texts=(StrangeText(),)) as server:
        error = (await server.ask("x", regex="a")).json()["error"]
    assert error["param"] is None
