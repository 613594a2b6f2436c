"""`/openapi.json` is true to what is served, and `/docs` shows it."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from http_harness import Harness, Rules, chat_body
from scripted_text import VOCAB_SIZE, tagged_text, writing
from starlette.routing import Route

from luce.listener.access import Access
from luce.listener.openapi.operations import OPERATIONS
from luce.listener.openapi.rules import FIELD_RULES
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

TEXT = tagged_text()
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
CALL = '<think>hm</think>Hi.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
USER = {"role": "user", "content": "hello"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [USER],
        "tools": [{"type": "function", "function": FUNCTION}],
        "reasoning_effort": "high",
        "logprobs": True,
        "top_logprobs": 2,
    },
    "/v1/completions": {"prompt": "hello", "logprobs": 2},
    "/v1/messages": {
        "max_tokens": 200,
        "messages": [USER],
        "tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}],
        "thinking": {"type": "adaptive"},
    },
    "/v1/responses": {
        "input": "hello",
        "tools": [{"type": "function", **FUNCTION}],
        "reasoning": {"effort": "high"},
    },
}


def serving(script: FakeScript | None = None, **rules: Any) -> Harness:
    script = script or writing(TEXT, CALL)
    return Harness(script, texts=(TEXT,), rules=Rules(**rules))


async def document_of(server: Harness) -> dict[str, Any]:
    document: dict[str, Any] = (await server.client.get("/openapi.json")).json()
    return document


def check(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    rooted = {**schema, "components": document["components"]}
    jsonschema_rs.validator_for(rooted).validate(value)


def content_of(document: dict[str, Any], path: str, status: int = 200) -> dict[str, Any]:
    content: dict[str, Any] = document["paths"][path]["post"]["responses"][str(status)]["content"]
    return content


def event_schema(content: dict[str, Any]) -> dict[str, Any]:
    schema = content["text/event-stream"]["schema"]["properties"]["data"]["contentSchema"]
    return dict(schema)


def data_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


async def test_every_route_is_in_it_and_nothing_else() -> None:
    async with serving() as server:
        app = server.http.config.app
        routed = {
            (method, route.path.replace(":path}", "}"))
            for route in app.routes
            if isinstance(route, Route)
            for method in route.methods or ()
            if method != "HEAD"
        }
        assert {(op.method, op.path) for op in OPERATIONS} == routed


async def test_it_is_made_once_and_needs_the_key() -> None:
    async with serving(access=Access(["key"])) as server:
        for path in ("/openapi.json", "/docs"):
            assert (await server.client.get(path)).status_code == 401
            headers = {"x-api-key": "key"}
            first = await server.client.get(path, headers=headers)
            assert first.content == (await server.client.get(path, headers=headers)).content
        document = (await server.client.get("/openapi.json", headers=headers)).json()
        assert document["security"] == [{"bearer": []}, {"x_api_key": []}]


async def test_the_page() -> None:
    async with serving() as server:
        page = await server.client.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "POST /v1/chat/completions" in page.text


TAKING_A_BODY = [op for op in OPERATIONS if op.request and op.path != "/models/unload"]
"""That one is only for models that come and go: `test_unload.py`."""


@pytest.mark.parametrize("op", TAKING_A_BODY, ids=lambda op: op.path)
async def test_examples_are_served(op: Any) -> None:
    async with serving() as server:
        document = await document_of(server)
        body = document["paths"][op.path]["post"]["requestBody"]["content"]["application/json"]
        check(document, body["schema"], body["example"])
        assert (await server.client.post(op.path, json=body["example"])).status_code == 200


@pytest.mark.parametrize("path", BODIES)
async def test_answers_streams_and_errors_are_as_described(path: str) -> None:
    async with serving() as server:
        document = await document_of(server)
        content = content_of(document, path)
        whole = await server.client.post(path, json=BODIES[path])
        assert whole.status_code == 200, whole.text
        check(document, content["application/json"]["schema"], whole.json())
        options = {"stream": True, "stream_options": {"include_usage": True}}
        streamed = await server.client.post(path, json=BODIES[path] | options)
        events = data_of(streamed.text)
        assert len(events) > 2
        for event in events:
            check(document, event_schema(content), event)
        wrong = await server.client.post(path, json=BODIES[path] | {"temperature": -1})
        schema = content_of(document, path, 400)["application/json"]["schema"]
        check(document, schema, wrong.json())


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_that_fails_is_as_described(path: str) -> None:
    script = FakeScript(vocab_size=VOCAB_SIZE, reply=[5] * 50, fail_error="InternalError")
    async with serving(script) as server:
        document = await document_of(server)
        streamed = await server.client.post(path, json=BODIES[path] | {"stream": True})
        events = data_of(streamed.text)
        assert "error" in json.dumps(events[-1])
        for event in events:
            check(document, event_schema(content_of(document, path)), event)


@pytest.mark.parametrize(
    "path", [op.path for op in OPERATIONS if op.method == "GET" and "{" not in op.path]
)
async def test_what_is_looked_at_is_as_described(path: str) -> None:
    async with serving() as server:
        document = await document_of(server)
        answer = await server.client.get(path)
        content = document["paths"][path]["get"]["responses"]["200"]["content"]
        assert list(content) == [answer.headers["content-type"]]
        if "application/json" in content:
            check(document, content["application/json"]["schema"], answer.json())


async def test_one_model_and_kept_responses_are_as_described() -> None:
    async with serving() as server:
        document = await document_of(server)

        async def check_answer(method: str, path: str, answer: httpx2.Response) -> None:
            responses = document["paths"][path][method]["responses"]
            schema = responses[str(answer.status_code)]["content"]["application/json"]["schema"]
            check(document, schema, answer.json())

        client = server.client
        await check_answer("get", "/v1/models/{name}", await client.get("/v1/models/big"))
        await check_answer("get", "/v1/models/{name}", await client.get("/v1/models/none"))
        made = (await client.post("/v1/responses", json={"input": "hi", "store": True})).json()
        kept, place = f"/v1/responses/{made['id']}", "/v1/responses/{response_id}"
        await check_answer("get", place, await client.get(kept))
        await check_answer("delete", place, await client.delete(kept))
        await check_answer("delete", place, await client.delete(kept))
        tokens = {"content": "hello", "with_pieces": True}
        await check_answer("post", "/tokenize", await client.post("/tokenize", json=tokens))


async def test_roles_are_those_that_are_accepted() -> None:
    roles = {
        owner.__module__.rpartition(".")[2]: rule["enum"]
        for (owner, field), rule in FIELD_RULES.items()
        if field == "role"
    }
    paths = {"openai_wire": "/v1/chat/completions", "anthropic_wire": "/v1/messages"}
    async with serving() as server:
        for module, path in paths.items():
            for role in [*roles[module], "nobody", "function", "model"]:
                body = chat_body(max_tokens=4)
                body["messages"] = [USER, {**USER, "role": role}]
                message = (await server.client.post(path, json=body)).text
                assert ("role must be one of" in message) is (role not in roles[module]), role
