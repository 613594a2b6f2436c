"""`/v1/messages/count_tokens` and `/tokenize`: the named model's tokenizer, no capacity needed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from http_harness import END, ByteText, Harness, Rules, eventually
from reporting_text import ReportingText
from scripted_text import tagged_text

from luce.listener.routes import tokens
from luce.testing.fake_script import FakeScript
from luce.text.bundle import TextBundle

pytestmark = pytest.mark.anyio

COUNT = "/v1/messages/count_tokens"
TOKENIZE = "/tokenize"
BOTH = [COUNT, TOKENIZE]


def question(text: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


async def count(server: Harness, *args: Any, **fields: Any) -> httpx2.Response:
    return await server.client.post(COUNT, json=question(*args, **fields))


async def tokenize(server: Harness, **fields: Any) -> httpx2.Response:
    return await server.client.post(TOKENIZE, json=fields)


# --- which model -------------------------------------------------------------------------


@pytest.mark.parametrize("path", BOTH)
async def test_a_named_model_counts_with_its_own_template(path: str) -> None:
    texts = ByteText(), ByteText(prefix="system: ")
    async with Harness(FakeScript(), FakeScript(), texts=texts) as server:
        answers = [
            (await server.client.post(path, json=question("hello", model=name))).json()
            for name in ("big", "small")
        ]
    assert [answer.get("input_tokens", answer.get("count")) for answer in answers] == [5, 13]


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": ""}, {"model": "auto"}])
async def test_several_models_need_a_name(path: str, fields: dict[str, Any]) -> None:
    async with Harness(FakeScript(), FakeScript()) as server:
        response = await server.client.post(path, json=question(**fields))
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "model")
    assert "big, small" in error["message"]


@pytest.mark.parametrize("path", BOTH)
async def test_an_unknown_name_is_404_and_never_another_model(path: str) -> None:
    texts = ByteText(), ByteText()
    async with Harness(FakeScript(), FakeScript(), texts=texts) as server:
        response = await server.client.post(path, json=question(model="Big"))
    assert response.status_code == 404
    assert "available models: big, small" in response.json()["error"]["message"]
    assert [text.num_prepared for text in texts] == [0, 0]


@pytest.mark.parametrize("path", BOTH)
async def test_a_name_that_is_no_string_is_400(path: str) -> None:
    async with Harness(FakeScript(), FakeScript()) as server:
        response = await server.client.post(path, json=question(model=42))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("name", [None, "auto", "big", "gpt-5"])
async def test_the_only_model_answers_to_any_name(path: str, name: str | None) -> None:
    async with Harness() as server:
        response = await server.client.post(path, json=question(model=name))
        assert response.status_code == 200


@pytest.mark.parametrize("path", BOTH)
async def test_no_capacity_is_needed(path: str) -> None:
    held = FakeScript(hold_after=0, max_concurrency=1)
    async with Harness(held, rules=Rules(queue_limit=0)) as server:
        ask = asyncio.create_task(server.ask("x"))
        await eventually(lambda: server.models[0].worker.in_flight == 1)
        response = await server.client.post(path, json=question("y" * 9000, model="big"))
        assert response.status_code == 200
        assert len(server.models[0].submits()) == 1
        server.models[0].worker.crash()
        await ask
        await eventually(lambda: server.models[0].handle.state.value == "lost")
        assert (await server.client.post(path, json=question(model="big"))).status_code == 200


@pytest.mark.parametrize("path", BOTH)
async def test_a_model_whose_tokenizer_loads_is_503(path: str, tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    async with Harness(FakeScript(load_until_file=str(loaded)), wait_ready=False) as server:
        response = await server.client.post(path, json=question())
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        loaded.touch()
        await server.ready()


@pytest.mark.parametrize("path", BOTH)
async def test_bad_bodies(path: str) -> None:
    async with Harness() as server:
        for content, status in ((b"{", 400), (b"[]", 400), (b"x" * 200_000, 413), (b"", 400)):
            response = await server.client.post(path, content=content)
            assert response.status_code == status, content[:5]
            assert response.json()["error"]["message"]
        refused = await server.client.post(path, json=question("refuse me"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "template_error")
        assert (await server.client.get(path)).status_code == 405


# --- count_tokens ------------------------------------------------------------------------


async def test_the_count_is_the_prompt_of_the_same_chat() -> None:
    async with Harness(texts=(ByteText(prefix="> "),)) as server:
        counted = (await count(server, "hello", system="be nice")).json()
        assert counted == {"input_tokens": len("> be nicehello")}
        messages = [
            {"role": "system", "content": "be nice"},
            {"role": "user", "content": "hello"},
        ]
        answer = (await server.ask(messages=messages)).json()
        assert answer["usage"]["prompt_tokens"] == counted["input_tokens"]


async def test_blocks_and_fields_that_change_no_count() -> None:
    blocks = [
        {"type": "text", "text": "he", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "llo"},
    ]
    async with Harness() as server:
        response = await count(server, blocks, system=blocks, tools=[], max_tokens=5, metadata={})
        assert response.json() == {"input_tokens": 10}
        assert (await count(server, thinking={"type": "disabled"})).json() == {"input_tokens": 5}


async def test_no_messages_count_the_system_text() -> None:
    async with Harness() as server:
        response = await server.client.post(COUNT, json={"messages": [], "system": "be nice"})
    assert response.json() == {"input_tokens": 7}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].input_schema"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": "x"}, "messages"),
        ({"system": 5}, "system"),
        # The message itself would be refused for these.
        ({"temperature": -0.5}, "temperature"),
        ({"rep_window": -1}, "rep_window"),
    ],
)
async def test_what_would_be_miscounted_is_refused(fields: dict[str, Any], param: str) -> None:
    async with Harness() as server:
        response = await server.client.post(COUNT, json=question(**fields))
    assert response.status_code == 400
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["param"].startswith(param)


async def test_a_real_model_counts_system_tools_calls_and_results(demo_model: Path) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bonn"}}
    history = [
        {"role": "user", "content": "How is it in Bonn?"},
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, call]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "It rains."}],
        },
    ]
    tool = {"name": "weather", "description": "Says it.", "input_schema": {"type": "object"}}
    bodies: list[dict[str, Any]] = [
        {"messages": history[:1]},
        {"messages": history[:1], "system": "Be short."},
        {"messages": history[:1], "system": "Be short.", "tools": [tool]},
        {"messages": history[:2], "system": "Be short.", "tools": [tool]},
        {"messages": history, "system": "Be short.", "tools": [tool]},
    ]
    text: Any = TextBundle.load(demo_model)
    async with Harness(texts=(text,)) as server:
        counts = [
            (await server.client.post(COUNT, json=body)).json()["input_tokens"] for body in bodies
        ]
        asked = {"messages": history[:1], "with_pieces": True}
        rendered = (await server.client.post(TOKENIZE, json=asked)).json()
    assert len(set(counts)) == len(counts)
    # This model's template adds a system text of its own when there is none.
    assert counts[1:] == sorted(counts[1:])
    assert rendered["count"] == counts[0]
    pieces = "".join(token["piece"] for token in rendered["tokens"])
    assert pieces.endswith(
        "<|im_start|>user\nHow is it in Bonn?<|im_end|>\n<|im_start|>assistant\n"
    )


# --- tokenize ----------------------------------------------------------------------------


async def test_text_to_tokens() -> None:
    async with Harness() as server:
        for name in ("content", "prompt"):
            answer = (await tokenize(server, **{name: "hé"})).json()
            assert answer == {"tokens": list("hé".encode()), "count": 3}
        assert (await tokenize(server, content="")).json() == {"tokens": [], "count": 0}


async def test_pieces_are_text_or_else_bytes() -> None:
    async with Harness() as server:
        answer = (await tokenize(server, content="hé", with_pieces=True)).json()
    first, *rest = answer["tokens"]
    assert first == {"id": ord("h"), "piece": "h"}
    assert [token["piece"] for token in rest] == [[0xC3], [0xA9]]


async def test_special_tokens_only_when_asked_for() -> None:
    async with Harness(texts=(ByteText(add_bos_id=1),)) as server:
        plain = (await tokenize(server, content="a<end>")).json()
        assert plain["tokens"] == list(b"a<end>")
        special = await tokenize(server, content="a<end>", parse_special=True, add_special=True)
        assert special.json() == {"tokens": [1, ord("a"), END], "count": 3}


async def test_a_conversation_is_rendered() -> None:
    async with Harness(texts=(ByteText(prefix="> "),)) as server:
        answer = (await tokenize(server, **question("hi"), with_pieces=True)).json()
    assert "".join(token["piece"] for token in answer["tokens"]) == "> hi"
    assert answer["count"] == 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "content"),
        ({"content": "a", "prompt": "a"}, "prompt"),
        ({"content": "a", "messages": []}, "messages"),
        ({"messages": []}, "messages"),
        ({**question(), "add_special": True}, "add_special"),
        ({**question(), "parse_special": False}, "parse_special"),
        ({"content": 5}, "content"),
        ({"content": "a", "with_pieces": "yes"}, "with_pieces"),
    ],
)
async def test_wrong_requests_name_the_field(fields: dict[str, Any], param: str) -> None:
    async with Harness() as server:
        response = await tokenize(server, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_half_a_surrogate_pair_is_400() -> None:
    async with Harness() as server:
        body = b'{"content": "\\ud83d"}'
        response = await server.client.post(TOKENIZE, content=body)
    assert response.status_code == 400


# --- how much ----------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["content", "prompt"])
async def test_long_plain_texts_are_refused_before_they_are_tokenised(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MAX_CHARACTERS", 50)
    async with Harness() as server:
        assert (await tokenize(server, **{field: "x" * 50})).status_code == 200
        response = await tokenize(server, **{field: "x" * 51})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (field, "invalid_request_error")
    assert "at most 50 characters, not 51" in error["message"]


@pytest.mark.parametrize("path", BOTH)
async def test_long_conversations_are_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 1)
    text = tagged_text()
    async with Harness(FakeScript(), texts=(text,), rules=Rules(max_body_bytes=10**6)) as server:
        # What a model can hold is counted whatever the bound is.
        assert (await server.client.post(path, json=question("a b " * 1000))).status_code == 200
        response = await server.client.post(path, json=question("a b " * 100_000))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages"
    assert f"more than {text.context_length} tokens" in error["message"]


@pytest.mark.parametrize("path", BOTH)
async def test_nothing_is_compiled_to_count(path: str) -> None:
    text = ReportingText(ByteText())
    tool = {"name": "f", "strict": True}
    body: dict[str, Any] = {
        COUNT: {
            **question(),
            "tools": [{**tool, "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any"},
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        },
        TOKENIZE: {
            **question(),
            "tools": [{"type": "function", "function": tool}],
            "tool_choice": "required",
            "response_format": {"type": "json_object"},
        },
    }[path]
    async with Harness(FakeScript(), texts=(text,)) as server:  # type: ignore[arg-type]
        assert (await server.client.post(path, json=body)).status_code == 200
    (call,) = text.calls
    assert (call.tool_choice, call.answer_format) == ("auto", None)
    assert [(given.name, given.is_strict) for given in call.tools] == [("f", False)]
