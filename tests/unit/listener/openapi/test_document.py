from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from luce.errors import Unauthorized
from luce.listener.dialects.anthropic_errors import error_body
from luce.listener.openapi.document import openapi_document
from luce.listener.openapi.operations import OPERATIONS, AnthropicErrorBody, Operation
from luce.listener.openapi.page import page_of
from luce.observability.log import request_id_var


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document(has_keys=True)


def nodes(value: Any) -> Iterator[Any]:
    yield value
    for child in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from nodes(child)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    names = set()
    for node in nodes(document):
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            names.add(node["$ref"].removeprefix("#/components/schemas/"))
    known = set(document["components"]["schemas"])
    assert names <= known
    assert all(name.replace(".", "").replace("_", "").isalnum() for name in known)


def test_every_schema_is_json_schema(document: dict[str, Any]) -> None:
    for name in document["components"]["schemas"]:
        jsonschema_rs.validator_for(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "$ref": f"#/components/schemas/{name}",
                "components": document["components"],
            }
        )


def test_names_of_operations_are_unique(document: dict[str, Any]) -> None:
    names = [op["operationId"] for path in document["paths"].values() for op in path.values()]
    assert len(set(names)) == len(names) == len(OPERATIONS)


def test_it_is_json_and_says_so(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert json.loads(json.dumps(document)) == document


def test_keys(document: dict[str, Any]) -> None:
    assert document["security"] == [{"bearer": []}, {"x_api_key": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert "security" not in document["paths"]["/props"]["get"]
    assert "401" in document["paths"]["/props"]["get"]["responses"]
    assert "401" not in document["paths"]["/health"]["get"]["responses"]
    open_document = openapi_document(has_keys=False)
    assert open_document["security"][0] == {}
    assert "security" not in open_document["paths"]["/health"]["get"]


def test_streams(document: dict[str, Any]) -> None:
    content = document["paths"]["/v1/messages"]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "text/event-stream"}
    data = content["text/event-stream"]["schema"]["properties"]["data"]
    events = data["contentSchema"]["anyOf"]
    assert {"$ref": "#/components/schemas/MessageStart"} in events
    event = document["components"]["schemas"]["Event"]["properties"]["response"]
    assert event == {"$ref": "#/components/schemas/Response"}


def test_errors_are_those_of_the_api(document: dict[str, Any]) -> None:
    for path, name in [("/v1/messages", "AnthropicErrorBody"), ("/v1/responses", "ErrorBody")]:
        responses = document["paths"][path]["post"]["responses"]
        for status in ("400", "401", "403", "404", "408", "413", "415", "500", "503"):
            schema = responses[status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": f"#/components/schemas/{name}"}
        assert "Retry-After" in responses["503"]["headers"]
        assert "WWW-Authenticate" in responses["401"]["headers"]


@pytest.mark.parametrize("request_id", ["", "req-1"])
def test_anthropics_envelope_is_the_documented_one(request_id: str) -> None:
    token = request_id_var.set(request_id)
    try:
        body = json.loads(error_body(Unauthorized("No.")))
    finally:
        request_id_var.reset(token)
    assert msgspec.to_builtins(msgspec.convert(body, AnthropicErrorBody)) == body


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op.request], ids=lambda op: op.path)
def test_fields_that_do_nothing_are_fields(op: Operation, document: dict[str, Any]) -> None:
    schema = document["paths"][op.path]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    reference = schema["allOf"][0]["$ref"] if "allOf" in schema else schema["$ref"]
    fields = document["components"]["schemas"][reference.rpartition("/")[2]]["properties"]
    for name in {*op.refused} & {*fields}:
        assert fields[name]["description"]
    assert set((op.rules or {}).get("required", ())) <= set(fields)


def test_the_page_shows_all_of_it_and_needs_nothing_else(document: dict[str, Any]) -> None:
    page = page_of(document)
    for op in OPERATIONS:
        assert f"<code>{op.method} {op.path}</code>" in page
    for name in document["components"]["schemas"]:
        assert f"id=type-{name}>" in page
    assert "A key is needed" in page
    assert "asks for no key" in page_of(openapi_document(has_keys=False))
    for outside in ("<script", "http://", "https://", "src=", "@import", "url("):
        assert outside not in page


def test_the_page_is_escaped(document: dict[str, Any]) -> None:
    evil = "<script>alert(1)</script>"
    schema = {"title": "x", "description": evil, "properties": {evil: {"enum": [evil]}}}
    changed = {**document, "components": {"schemas": {evil: schema}}}
    assert "<script" not in page_of(changed)
