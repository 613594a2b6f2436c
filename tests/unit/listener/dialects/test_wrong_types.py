"""Every field of every API with values of every type: taken, or refused by its name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from luce.errors import ApiError
from luce.listener.dialects.anthropic_messages import AnthropicMessages
from luce.listener.dialects.anthropic_wire import MessagesRequest
from luce.listener.dialects.base import Dialect
from luce.listener.dialects.openai_chat import OpenAIChat
from luce.listener.dialects.openai_completions import OpenAICompletions
from luce.listener.dialects.openai_completions_wire import CompletionRequest
from luce.listener.dialects.openai_responses import OpenAIResponses
from luce.listener.dialects.openai_wire import ChatRequest
from luce.listener.dialects.responses_wire import ResponsesRequest
from luce.listener.responses_store import ResponseStore

USER = [{"role": "user", "content": "x"}]
EACH: list[tuple[Dialect[Any], type[msgspec.Struct], dict[str, Any]]] = [
    (OpenAIChat(), ChatRequest, {"messages": USER}),
    (OpenAICompletions(), CompletionRequest, {"prompt": "x"}),
    (OpenAIResponses(ResponseStore()), ResponsesRequest, {"input": "x"}),
    (AnthropicMessages(), MessagesRequest, {"messages": USER, "max_tokens": 9}),
]
VALUES = (
    "null true false 0 1 -1 5 1.5 -0.0 1e308 123456789012345678901234567890 "
    f'"" "x" "\\u0000" [] [1] ["x"] [null] [[]] [{{}}] [{{"type":"x"}}] {{}} {{"a":1}} {{"1":1}} '
    f'{{"type":"x"}} {{"type":5}} {{"format":5}} {{"effort":[]}} {"9" * 400} '
    f'{"[" * 200}{"]" * 200} {{"a":{"[" * 200}{"]" * 200}}}'
).split()


@pytest.mark.parametrize(("dialect", "request_type", "base"), EACH, ids=lambda each: "")
def test_wrong_types(
    dialect: Dialect[Any], request_type: type[msgspec.Struct], base: dict[str, Any]
) -> None:
    decoded, refusals = 0, []
    for field in msgspec.structs.fields(request_type):
        for value in VALUES:
            members = {name: json.dumps(given) for name, given in base.items()}
            members[field.encode_name] = value
            body = "{" + ",".join(f'"{name}":{given}' for name, given in members.items()) + "}"
            try:
                dialect.decode(body.encode())
                decoded += 1
            except ApiError as error:
                refusals.append((error.status, error.param, body))
    assert [each for each in refusals if each[0] not in (400, 404) or not each[1]] == []
    assert decoded > 100
    assert len(refusals) > 500
