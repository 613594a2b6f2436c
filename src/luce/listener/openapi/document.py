"""The OpenAPI 3.1 document, put together from the operations and the types they name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luce import __version__
from luce.errors import ApiError, Overloaded, Unauthorized
from luce.listener.dialects import responses_answer
from luce.listener.dialects.base import EVENT_STREAM_TYPE
from luce.listener.openapi.operations import OPERATIONS, Operation
from luce.listener.openapi.rules import EXAMPLES, Schema
from luce.listener.openapi.schemas import REF, schemas_of

_DESCRIPTION = """\
One address for language models: OpenAI's Chat Completions, Completions and Responses, Anthropic's
Messages. Null is the same as absent. Fields that are not named are ignored."""

_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def openapi_document(*, has_keys: bool) -> dict[str, Any]:
    """The document.

    Args:
        has_keys: this server asks for a key.
    """
    requests = [op.request for op in OPERATIONS if op.request is not None]
    answers: list[type] = []
    for op in OPERATIONS:
        answers += [kind for kind in (op.answer, *op.events) if kind is not None]
        answers += [op.error_body, *(kind for _, kind in op.also)]
    schemas, named = schemas_of(requests, answers)
    _say_what_is_raw(schemas, named)
    paths: dict[str, dict[str, Any]] = {}
    for op in OPERATIONS:
        if op.request is not None:
            _say_what_is_not_served(op, named[_name_in(schemas[op.request])])
        paths.setdefault(op.path, {})[op.method.lower()] = _operation(op, schemas, has_keys)
    return {
        "openapi": "3.1.0",
        "info": {"title": "luce", "version": __version__, "description": _DESCRIPTION},
        "security": _security(has_keys),
        "tags": [{"name": tag} for tag in dict.fromkeys(op.tag for op in OPERATIONS)],
        "paths": paths,
        "components": {"schemas": named, "securitySchemes": _SECURITY},
    }


def _say_what_is_raw(schemas: dict[Any, Schema], named: dict[str, Schema]) -> None:
    """An event holds the response as it was encoded before, which has no type to look at."""
    event = named[_name_in(schemas[responses_answer.Event])]
    event["properties"]["response"] = schemas[responses_answer.Response]


def _say_what_is_not_served(op: Operation, schema: Schema) -> None:
    for names, told in (
        (op.refused, "Known and not served: refused unless it asks for nothing."),
        (op.ignored, "Accepted; changes nothing here."),
    ):
        for name in names:
            if name in schema["properties"]:
                schema["properties"][name].setdefault("description", told)


def _name_in(reference: Schema) -> str:
    return str(reference["$ref"]).removeprefix(REF)


def _security(has_keys: bool) -> list[dict[str, list[str]]]:
    """Either scheme; where no key is asked for also none."""
    either: list[dict[str, list[str]]] = [{name: []} for name in _SECURITY]
    return either if has_keys else [{}, *either]


def _operation(op: Operation, schemas: dict[Any, Schema], has_keys: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": op.operation_id,
        "tags": [op.tag],
        "summary": op.summary,
    }
    if op.description:
        described["description"] = op.description
    if op.parameters:
        described["parameters"] = [
            {
                "name": parameter.name,
                "in": "path",
                "required": True,
                "description": parameter.description,
                "schema": {"type": "string", "minLength": 1},
            }
            for parameter in op.parameters
        ]
    if op.request is not None:
        schema = schemas[op.request]
        if op.rules is not None:
            schema = {"allOf": [schema, op.rules]}
        content = {"schema": schema, "example": EXAMPLES[op.request]}
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    if op.is_open and has_keys:
        described["security"] = []
    described["responses"] = _responses(op, schemas)
    return described


def _responses(op: Operation, schemas: dict[Any, Schema]) -> dict[str, Any]:
    whole: Schema = {"type": "string"} if op.answer is None else schemas[op.answer]
    content: dict[str, Any] = {op.media_type: {"schema": whole}}
    if op.events:
        content[EVENT_STREAM_TYPE] = {"schema": _event(op, schemas)}
    found: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    for status, kind in op.also:
        found[str(status)] = {
            "description": "The answer while it is not.",
            "content": {"application/json": {"schema": schemas[kind]}},
        }
    for status in sorted({error.status for error in op.all_errors}):
        errors = [error for error in op.all_errors if error.status == status]
        found[str(status)] = _error_response(errors, schemas[op.error_body])
    return found


def _event(op: Operation, schemas: dict[Any, Schema]) -> Schema:
    """One event of a stream, as OpenAPI 3.2 has it; 3.1 has no words for streams."""
    return {
        "type": "object",
        "description": f"With `stream`: events of this form; the last one is {op.stream_end}. "
        "Comments (`:`) come while nothing else does.",
        "properties": {
            "event": {"type": "string"},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"anyOf": [schemas[kind] for kind in op.events]},
            },
        },
        "required": ["data"],
    }


def _error_response(errors: Iterable[type[ApiError]], schema: Schema) -> dict[str, Any]:
    told = [f"`{error.code}`: {(error.__doc__ or '').splitlines()[0]}" for error in errors]
    response: dict[str, Any] = {
        "description": "\n".join(told),
        "content": {"application/json": {"schema": schema}},
    }
    if any(issubclass(error, Overloaded) for error in errors):
        response["headers"] = {"Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}}}
    if any(issubclass(error, Unauthorized) for error in errors):
        response["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return response
