from __future__ import annotations

import json
from typing import Any

import pytest

from luce.errors import InvalidRequest
from luce.listener.dialects.anthropic_messages import AnthropicMessages
from luce.listener.dialects.base import Dialect
from luce.listener.dialects.openai_chat import OpenAIChat
from luce.listener.dialects.openai_completions import OpenAICompletions
from luce.listener.dialects.openai_responses import OpenAIResponses
from luce.listener.responses_store import ResponseStore
from luce.text.call import GenerationCall, JsonFormat, LarkFormat, RegexFormat

USER = {"role": "user", "content": "x"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FLAT = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True, "description": "d"}
NESTED = {"type": "json_schema", "json_schema": {key: FLAT[key] for key in FLAT if key != "type"}}

CHAT = OpenAIChat(), {"messages": [USER]}
COMPLETIONS = OpenAICompletions(), {"prompt": "x"}
RESPONSES = OpenAIResponses(ResponseStore()), {"input": "x"}
MESSAGES = AnthropicMessages(), {"messages": [USER], "max_tokens": 9}
ALL = [
    pytest.param(CHAT, id="chat"),
    pytest.param(COMPLETIONS, id="completions"),
    pytest.param(RESPONSES, id="responses"),
    pytest.param(MESSAGES, id="messages"),
]


def decode(endpoint: tuple[Dialect, dict[str, Any]], **fields: Any) -> GenerationCall:
    dialect, body = endpoint
    return dialect.decode(json.dumps({**body, **fields}).encode())


@pytest.mark.parametrize(
    ("endpoint", "fields", "schema", "param"),
    [
        (CHAT, {"response_format": NESTED}, SCHEMA, "response_format.json_schema.schema"),
        (CHAT, {"response_format": {"type": "json_object"}}, None, "response_format"),
        (
            CHAT,
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            SCHEMA,
            "response_format.schema",
        ),
        (COMPLETIONS, {"response_format": NESTED}, SCHEMA, "response_format.json_schema.schema"),
        (COMPLETIONS, {"response_format": {"type": "json_object"}}, None, "response_format"),
        (RESPONSES, {"text": {"format": FLAT}}, SCHEMA, "text.format.schema"),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}, None, "text.format"),
        (MESSAGES, {"output_config": {"format": FLAT}}, SCHEMA, "output_config.format.schema"),
        (MESSAGES, {"output_format": FLAT}, SCHEMA, "output_format.schema"),
    ],
)
def test_json(endpoint: Any, fields: Any, schema: Any, param: str) -> None:
    call = decode(endpoint, **fields)
    assert call.answer_format == JsonFormat(schema)
    assert call.client_names["answer_format"] == param


@pytest.mark.parametrize("endpoint", ALL)
def test_grammar_and_regex(endpoint: Any) -> None:
    call = decode(endpoint, grammar="start: /a/")
    assert call.answer_format == LarkFormat("start: /a/")
    assert call.client_names["answer_format"] == "grammar"
    call = decode(endpoint, regex="a+")
    assert call.answer_format == RegexFormat("a+")
    assert call.client_names["answer_format"] == "regex"


@pytest.mark.parametrize("endpoint", ALL)
@pytest.mark.parametrize("name", ["grammar", "regex"])
def test_an_empty_form_is_a_mistake(endpoint: Any, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} must not be empty") as caught:
        decode(endpoint, **{name: ""})
    assert caught.value.param == name


@pytest.mark.parametrize("endpoint", ALL)
@pytest.mark.parametrize("fields", [{}, {"grammar": None}, {"regex": None}])
def test_nothing_is_asked_for(endpoint: Any, fields: dict[str, Any]) -> None:
    call = decode(endpoint, **fields)
    assert call.answer_format is None
    assert "answer_format" not in call.client_names


def test_text_is_any_text() -> None:
    text = {"type": "text"}
    assert decode(CHAT, response_format=text).answer_format is None
    assert decode(RESPONSES, text={"format": text}).answer_format is None
    assert decode(CHAT, response_format=text, regex="a").answer_format == RegexFormat("a")


@pytest.mark.parametrize("endpoint", ALL)
def test_two_formats_are_one_too_many(endpoint: Any) -> None:
    with pytest.raises(InvalidRequest, match="grammar and regex both say") as caught:
        decode(endpoint, grammar="start: /a/", regex="a")
    assert caught.value.param == "regex"


@pytest.mark.parametrize("endpoint", ALL)
def test_fewest_tokens(endpoint: Any) -> None:
    assert decode(endpoint).sampling.min_tokens == 0
    assert decode(endpoint, min_tokens=5).sampling.min_tokens == 5
    with pytest.raises(InvalidRequest, match="at most max_tokens, 4, not 5") as caught:
        decode(endpoint, min_tokens=5, max_tokens=4)
    assert caught.value.param == "min_tokens"


def test_more_tokens_than_any_context() -> None:
    assert decode(CHAT, min_tokens=10**30).sampling.min_tokens == 2**31 - 1


def test_fewest_tokens_are_held_against_the_default_of_legacy_completions() -> None:
    with pytest.raises(InvalidRequest, match="at most max_tokens, 16"):
        decode(COMPLETIONS, min_tokens=17)
