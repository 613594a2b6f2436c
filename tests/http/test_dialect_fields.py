"""Runs the tables of `field_tables`: each field of each API is done, harmless or refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import field_tables as tables
import pytest
from field_tables import Row, Seen
from http_harness import Harness
from reporting_text import ReportingText, last_call
from scripted_text import tagged_text, writing

from luce.listener.dialects import (
    anthropic_wire,
    openai_completions_wire,
    openai_wire,
    responses_wire,
)

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Api:
    """An API and its tables.

    Attributes:
        path: of its endpoint.
        base: the fields without which there is no request.
        request: the wire struct.
        served, harmless, refused: the tables.
        known: what the wire module says of each field.
    """

    path: str
    base: dict[str, Any]
    request: Any
    served: dict[str, Row]
    harmless: dict[str, Any]
    refused: dict[str, Any]
    known: Any

    @property
    def struct_fields(self) -> set[str]:
        return set(self.request.__struct_fields__)


USER = tables.USER
APIS = {
    "chat": Api(
        "/v1/chat/completions",
        {"messages": [USER]},
        openai_wire.ChatRequest,
        tables.CHAT,
        tables.CHAT_NO_EFFECT,
        tables.CHAT_REFUSED,
        openai_wire,
    ),
    "completions": Api(
        "/v1/completions",
        {"prompt": "x"},
        openai_completions_wire.CompletionRequest,
        tables.COMPLETIONS,
        {
            name: tables.OPENAI_NO_EFFECT[name]
            for name in tables.OPENAI_NO_EFFECT
            if name not in ("prompt_cache_options", "prompt_cache_retention")
        },
        tables.COMPLETIONS_REFUSED,
        openai_completions_wire,
    ),
    "responses": Api(
        "/v1/responses",
        {"input": "x"},
        responses_wire.ResponsesRequest,
        tables.RESPONSES,
        {
            name: value
            for name, value in tables.RESPONSES_NO_EFFECT.items()
            if name not in ("metadata", "store")
        },
        tables.RESPONSES_REFUSED,
        responses_wire,
    ),
    "messages": Api(
        "/v1/messages",
        {"messages": [USER], "max_tokens": 100},
        anthropic_wire.MessagesRequest,
        tables.MESSAGES,
        tables.MESSAGES_NO_EFFECT,
        tables.MESSAGES_REFUSED,
        anthropic_wire,
    ),
}
EACH = pytest.mark.parametrize("api", [pytest.param(api, id=name) for name, api in APIS.items()])


def serving() -> Harness:
    text = tagged_text()
    return Harness(writing(text, "abcabc"), texts=(ReportingText(text),))  # type: ignore[arg-type]


async def seen(server: Harness, api: Api, **fields: Any) -> Seen:
    response = await server.client.post(api.path, json={**api.base, **fields})
    assert response.status_code == 200, (fields, response.text)
    sampling = server.models[0].submits()[-1].sampling
    return Seen(last_call(server), sampling, response.text)


@EACH
async def test_each_served_field_does_what_it_says(api: Api) -> None:
    async with serving() as server:
        for name, row in api.served.items():
            fields = {name: row.value, **row.beside}
            if name == "previous_response_id":
                response = await server.client.post(api.path, json={**api.base, **fields})
                assert response.status_code == 404
                continue
            if api.path == "/v1/messages" and name in tables.OTHER_CAPS:
                fields["max_tokens"] = None
            assert row.check(await seen(server, api, **fields)), name
        await server.idle()


@EACH
async def test_no_check_is_true_of_a_request_without_the_field(api: Api) -> None:
    """A row whose check cannot fail shows nothing."""
    cannot_fail = {"stream_options", "n", "previous_response_id", *api.base}
    async with serving() as server:
        plain = await seen(server, api)
        for name, row in api.served.items():
            if name not in cannot_fail:
                beside = await seen(server, api, **row.beside) if row.beside else plain
                assert not row.check(beside), name


@EACH
async def test_fields_without_effect_have_none(api: Api) -> None:
    async with serving() as server:
        plain = await seen(server, api)
        for name, value in {**api.harmless, **tables.UNKNOWN}.items():
            with_it = await seen(server, api, **{name: value})
            assert with_it.sampling == plain.sampling, name
            assert with_it.call.messages == plain.call.messages, name
            assert with_it.call.tools == plain.call.tools, name


@EACH
async def test_refused_fields_are_named(api: Api) -> None:
    async with serving() as server:
        for name, value in api.refused.items():
            response = await server.client.post(api.path, json={**api.base, name: value})
            assert response.status_code == 400, name
            error = response.json()["error"]
            assert (error["param"], error["code"]) == (name, "unsupported_feature")
        assert server.models[0].submits() == []


@EACH
async def test_null_is_absent_in_all_of_them(api: Api) -> None:
    async with serving() as server:
        nulls = dict.fromkeys({*api.struct_fields, *api.harmless, *api.refused} - set(api.base))
        assert (await seen(server, api, **nulls)).sampling == (await seen(server, api)).sampling


@EACH
def test_every_field_is_in_one_table(api: Api) -> None:
    tabled = [*api.served, *api.harmless, *api.refused]
    assert len(set(tabled)) == len(tabled)
    assert api.struct_fields - set(tabled) == set()
    assert set(api.served) == api.known.SERVED
    assert set(api.refused) == set(api.known.UNSERVED)
    assert set(api.harmless) >= api.known.NO_EFFECT


SPEC_FIELDS = {
    *("stream", "max_tokens", "max_output_tokens", "max_completion_tokens"),
    *("temperature", "top_p", "top_k", "presence_penalty", "repetition_penalty", "rep_pen"),
    *("frequency_penalty", "seed", "rep_window", "stop", "stop_sequences"),
    *("tools", "tool_choice", "reasoning", "reasoning_effort", "thinking"),
    *("chat_template_kwargs", "prefix_cache", "session_id", "logprobs", "top_logprobs"),
    *("n", "logit_bias", "user", "stream_options", "response_format", "parallel_tool_calls"),
    *("store", "include", "text", "service_tier", "previous_response_id", "metadata"),
    "prompt_cache_key",
}
"""The fields that the followed server's documents name, and our own APIs' lists must know."""

CLIENT_FIELDS = {
    "messages": "context_management max_tokens messages metadata model output_config stream system"
    " thinking tools",
    "responses": "model instructions input tools tool_choice parallel_tool_calls reasoning store"
    " stream include prompt_cache_key text previous_response_id client_metadata",
    "chat": "model stream messages tools tool_choice stream_options response_format"
    " max_completion_tokens",
}
"""What real clients send, by API."""


def test_no_field_of_the_documents_is_forgotten() -> None:
    tabled = {name: {*api.served, *api.harmless, *api.refused} for name, api in APIS.items()}
    everywhere = set[str]().union(*tabled.values()) | set(tables.UNKNOWN)
    assert SPEC_FIELDS - everywhere == set()
    for name, fields in CLIENT_FIELDS.items():
        assert set(fields.split()) - tabled[name] == set()


# --- the same in all APIs ----------------------------------------------------------------


async def test_seed_and_sampling_are_the_same_request_in_all_apis() -> None:
    fields: dict[str, Any] = {"seed": 7, "temperature": 1.2, "top_p": 0.9, "max_tokens": 9}
    bodies = {
        "chat": {"messages": [{"role": "system", "content": "S"}, USER]},
        "responses": {"instructions": "S", "input": "x"},
        "messages": {"system": "S", "messages": [USER]},
    }
    async with serving() as server:
        for name, body in bodies.items():
            response = await server.client.post(APIS[name].path, json={**body, **fields})
            assert response.status_code == 200, response.text
        first, *others = server.models[0].submits()
    assert first.sampling.seed == 7
    for other in others:
        assert (other.prompt, other.sampling) == (first.prompt, first.sampling)


async def test_a_forced_format_is_the_same_request_in_all_apis() -> None:
    bodies: dict[str, dict[str, Any]] = {
        "chat": {"messages": [USER], "response_format": tables.NESTED},
        "completions": {"prompt": "x", "response_format": tables.NESTED},
        "responses": {"input": "x", "text": {"format": tables.FLAT}},
        "messages": {
            "messages": [USER],
            "max_tokens": 9,
            "output_config": {"format": tables.FLAT},
        },
    }
    async with serving() as server:
        formats = []
        for name, body in bodies.items():
            response = await server.client.post(APIS[name].path, json=body)
            assert response.status_code == 200, response.text
            formats.append(last_call(server).answer_format)
        echoed = json.loads(
            (await server.client.post("/v1/responses", json=bodies["responses"])).text
        )
    assert len(set(map(repr, formats))) == 1
    assert echoed["text"]["format"] == tables.FLAT
