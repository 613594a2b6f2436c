"""Reasoning budgets: from the command line and the request to what the worker is told."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_harness import CHAT, Harness, chat_body, events_of
from scripted_text import TEMPLATES, tagged_text, writing

from luce.cli.launch import read_launch
from luce.cli.resolve import resolve
from luce.listener.startup import thinking_options
from luce.protocol.sampling import SamplingParams
from luce.text.thinking import Thinking

pytestmark = pytest.mark.anyio

TEXT = tagged_text()
ANSWER = "<think>\nLet me see.\n</think>\n\nIt is four."
CARD = {
    "name": "tiny",
    "source": "a test",
    "verified_at": "2026-11-29",
    "max_tokens": 900,
    "hard_limit_reply_budget": 100,
    "thinking_terminator_hint": "\nEnough.</think>",
    "sampling": {"temperature": 0.3, "top_k": 5, "min_p": 0.1},
}


def text_for(line: str, environment: Mapping[str, str] | None = None, text: Any = TEXT) -> Any:
    """The text side of a model served with these options."""
    (config,) = resolve(read_launch(["m.gguf", *line.split()]), environment or {}).config.models
    thinking = Thinking.of(
        text.name, text.architecture, text.channels, text.tokenizer, thinking_options(config)
    )
    defaults = thinking.with_recommended({})
    return replace(text, thinking=thinking, generation_defaults=defaults)


def serving(line: str = "", *, answer: str = ANSWER, text: Any = None, **fields: Any) -> Harness:
    text = text or text_for(line)
    script = writing(text, answer, max_ctx=100_000, kv_pool_tokens=200_000, **fields)
    return Harness(script, texts=(text,))


def submitted(server: Harness) -> SamplingParams:
    return server.models[0].submits()[-1].sampling


def budget(server: Harness) -> tuple[int, int] | None:
    """The whole output and the reasoning, as the worker was told; None without a budget."""
    sampling = submitted(server)
    if sampling.reasoning is None:
        return None
    return sampling.max_tokens, sampling.reasoning.max_tokens


ENABLED = {"thinking": {"type": "enabled"}}
REPLY = "--hard-limit-reply-budget 50"


@pytest.mark.parametrize(
    ("line", "fields", "expected"),
    [
        (f"{REPLY} --think-max-tokens 300", ENABLED, (350, 300)),
        (f"{REPLY} --think-max-tokens 300", {**ENABLED, "max_tokens": 200}, (200, 150)),
        (f"{REPLY} --think-max-tokens 0", ENABLED, (50, 0)),
        ("--hard-limit-reply-budget 0", ENABLED, None),
        (f"{REPLY} --default-max-tokens 200", ENABLED, (200, 150)),
        (f"{REPLY} --max-tokens 210", ENABLED, (210, 160)),
        (f"{REPLY} --reasoning-effort-low 11", {"reasoning_effort": "low"}, (61, 11)),
        (f"{REPLY} --reasoning-effort-low 11", {"reasoning_effort": "minimal"}, (61, 11)),
        (f"{REPLY} --reasoning-effort-medium 5000", {"reasoning_effort": "medium"}, (5050, 5000)),
        (f"{REPLY} --reasoning-effort-high 20000", {"reasoning_effort": "any"}, (20050, 20000)),
        (f"{REPLY} --reasoning-effort-x-high 32720", {"reasoning_effort": "xhigh"}, (32768, 32718)),
        (f"{REPLY} --reasoning-effort-max 99999", {"reasoning_effort": "max"}, (32768, 32718)),
        (
            f"{REPLY} --reasoning-effort-max 50000",
            {"reasoning_effort": "max", "max_tokens": 60000},
            (50050, 50000),
        ),
        ("", {"reasoning_effort": "low"}, (3584 + 4096, 3584)),
        ("", {"reasoning": {"effort": "low"}, "max_tokens": 1000}, (1000, 500)),
        ("", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, (5120, 1024)),
        (
            "",
            {"thinking": {"type": "enabled", "budget_tokens": 10, "reply_budget": 20}},
            (30, 10),
        ),
    ],
)
async def test_what_the_worker_is_told(
    line: str, fields: dict[str, Any], expected: tuple[int, int] | None
) -> None:
    async with serving(line) as server:
        response = await server.ask("2+2", **fields)
        assert response.status_code == 200, response.text
        assert budget(server) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"reasoning_effort": "none"},
        {"reasoning": {}},
        {"thinking": {"type": "adaptive"}},
        {"thinking": {"type": "disabled", "budget_tokens": 5}},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {"reasoning_effort": "low"}},
    ],
)
async def test_who_asks_for_no_budget_has_none(fields: dict[str, Any]) -> None:
    async with serving("--think-max-tokens 5 --default-max-tokens 700") as server:
        await server.ask("2+2", **fields)
        assert budget(server) is None
        assert submitted(server).max_tokens == 700


async def test_the_other_dialects() -> None:
    async with serving() as server:
        body: dict[str, Any] = {"model": "m", "max_tokens": 2048, **chat_body()}
        body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        response = await server.client.post("/v1/messages", json=body)
        assert response.status_code == 200, response.text
        assert budget(server) == (2048, 1024)
        body = {"model": "m", "input": "hi", "reasoning": {"effort": "medium"}}
        response = await server.client.post("/v1/responses", json=body)
        assert response.status_code == 200, response.text
        assert budget(server) == (14336 + 4096, 14336)


async def test_the_tags_and_what_closes_them() -> None:
    async with serving() as server:
        await server.ask("2+2", reasoning_effort="low")
        reasoning = submitted(server).reasoning
        assert reasoning is not None
        control = TEXT.tokenizer.control_id
        assert reasoning.open_ids == (control("<think>"),)
        assert reasoning.close_ids == reasoning.forced_ids == (control("</think>"),)
        assert reasoning.starts_open is False


async def test_a_prompt_that_opens_reasoning() -> None:
    source = (TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")
    opening = source + "{% if enable_thinking %}{{ '<think>\\n' }}{% endif %}"
    async with serving(text=tagged_text(chat_template=opening)) as server:
        await server.ask("2+2", reasoning_effort="low")
        reasoning = submitted(server).reasoning
        assert reasoning is not None
        assert reasoning.starts_open is True


async def test_a_model_without_tags_has_no_budget_and_its_whole_output() -> None:
    plain = tagged_text(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    async with serving(text=plain) as server:
        await server.ask("2+2", **ENABLED, max_tokens=20000)
        assert budget(server) is None
        assert submitted(server).max_tokens == 20000


async def test_a_budget_does_not_send_a_request_to_another_model() -> None:
    text = text_for(REPLY)
    script = writing(text, ANSWER)
    async with Harness(script, script, texts=(text, text)) as server:
        await server.ask("2+2", reasoning_effort="low", max_tokens=3500)
        assert budget(server) == (3500, 3450)
        await server.ask("2+2", thinking={"type": "enabled", "budget_tokens": 9}, max_tokens=3500)
        assert budget(server) == (59, 9)
        assert not server.models[1].submits()


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    (tmp_path / "tiny.json").write_text(json.dumps(CARD), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("by_variable", [False, True])
async def test_a_card(cards: Path, by_variable: bool) -> None:
    line = "" if by_variable else f"--model-cards {cards}"
    text = text_for(line, {"LUCE_MODEL_CARDS_DIR": str(cards)} if by_variable else {})
    async with serving(text=text) as server:
        await server.ask("2+2", **ENABLED)
        sampling = submitted(server)
        assert (sampling.temperature, sampling.top_k, sampling.min_p) == (0.3, 5, 0.1)
        assert budget(server) == (900, 800)
        assert sampling.reasoning is not None
        read = TEXT.tokenizer.token_bytes
        assert b"".join(map(read, sampling.reasoning.forced_ids)) == b"\nEnough.</think>"
        await server.ask("2+2", temperature=0, top_k=7)
        assert (submitted(server).temperature, submitted(server).top_k) == (0.0, 7)
        props = (await server.client.get("/props")).json()
    assert props["model_card"] == CARD
    assert props["default_generation_settings"]["temperature"] == 0.3
    assert props["budget_envelope"] == {
        "model_card_source": str(cards / "tiny.json"),
        "default_max_tokens": 900,
        "hard_limit_reply_budget": 100,
        "think_max_tokens": 800,
        "effort_tiers": {"low": 100, "medium": 400, "high": 800, "x-high": 800, "max": 800},
    }
    assert props["reasoning"] == {
        "supported": True,
        "default": None,
        "supported_efforts": ["low", "medium", "high", "x-high", "max"],
    }
    assert props["capabilities"]["reasoning_supported"] is True


async def test_flags_before_the_card(cards: Path) -> None:
    line = f"--model-cards {cards} --hard-limit-reply-budget 20 --default-max-tokens 500"
    async with serving(text=text_for(line)) as server:
        await server.ask("2+2", **ENABLED)
        assert budget(server) == (500, 480)


async def test_props_of_a_model_without_a_card_and_with_a_short_context() -> None:
    async with Harness(writing(TEXT, ANSWER, max_ctx=1024), texts=(TEXT,)) as server:
        props = (await server.client.get("/props")).json()
    assert props["model_card"] is None
    envelope = props["budget_envelope"]
    assert envelope["model_card_source"] == "family:qwen3"
    assert envelope["default_max_tokens"] == 32768
    assert envelope["effort_tiers"] == dict.fromkeys(envelope["effort_tiers"], 512)


NOTHING: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 0, "reply_budget": 0}}


class TestNothingLeft:
    async def test_an_empty_answer_and_no_worker(self) -> None:
        async with serving() as server:
            body = (await server.ask("2+2", **NOTHING)).json()
            (choice,) = body["choices"]
            assert choice["finish_reason"] == "length"
            assert choice["message"]["content"] == ""
            assert body["usage"]["completion_tokens"] == 0
            assert body["usage"]["prompt_tokens"] > 0
            assert not server.models[0].submits()
            await server.idle()
            assert (await server.ask("2+2")).status_code == 200

    async def test_in_a_stream(self) -> None:
        async with serving() as server:
            events = events_of((await server.ask("2+2", **NOTHING, stream=True)).text)
            assert events[-1] == "[DONE]"
            assert [
                event["choices"][0]["finish_reason"] for event in events[:-1] if event["choices"]
            ][-1] == "length"
            assert not server.models[0].submits()

    async def test_while_the_model_is_busy(self) -> None:
        async with serving(max_concurrency=1, hold_after=1) as server:
            async with server.client.stream("POST", CHAT, json=chat_body(stream=True)) as busy:
                assert (await server.ask("2+2", **NOTHING)).status_code == 200
                server.models[0].worker.release()
                await busy.aread()
            assert len(server.models[0].submits()) == 1

    async def test_several_choices(self) -> None:
        async with serving() as server:
            body = (await server.ask("2+2", **NOTHING, n=2)).json()
        assert [choice["finish_reason"] for choice in body["choices"]] == ["length", "length"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("<think>a b c</think>So.", "hard"),
        ("<think>a</think>So.", "natural"),
        ("<think>a b c d e f", "natural"),
        ("So.", "natural"),
        ("<think>a</think>So.<think>b c d</think>", "natural"),
    ],
)
async def test_how_reasoning_ended_is_logged(
    answer: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = TEXT.tokenizer.encode_with_specials("<think>a b c")
    thinking = {"type": "enabled", "budget_tokens": len(tokens)}
    with caplog.at_level(logging.INFO):
        async with serving(answer=answer) as server:
            await server.ask("x", thinking=thinking)
            await server.ask("x", reasoning_effort="none")
            await server.idle()
    kinds = [
        getattr(record, "reasoning_close", None)
        for record in caplog.records
        if record.getMessage() == "request finished"
    ]
    assert kinds == [kind, None]


PLAIN = tagged_text(("<tool_call>", "</tool_call>"))
"""Its tags of reasoning are no control tokens."""


async def test_tags_that_are_plain_text_are_looked_for_in_the_bytes() -> None:
    budget = {"thinking": {"type": "enabled", "budget_tokens": 5}}
    async with serving(text=text_for("", text=PLAIN)) as server:
        for fields, comes_first in (({}, False), ({"regex": "[a-z]+"}, True)):
            await server.client.post(CHAT, json=chat_body(**budget, **fields))
            told = submitted(server).reasoning
            assert told is not None
            assert told.texts is not None
            assert (told.texts.opening, told.texts.close) == (b"<think>", b"</think>")
            assert told.texts.comes_first is comes_first
            rest = b"".join(map(PLAIN.tokenizer.token_bytes, told.texts.half_ids[1]))
            assert rest == b"think>"
    async with serving() as server:  # Here they are control tokens.
        await server.client.post(CHAT, json=chat_body(**budget))
        told = submitted(server).reasoning
        assert told is not None
        assert told.texts is None


async def test_least_tokens_beyond_the_budgets_are_a_bad_request() -> None:
    budgets = {"thinking": {"type": "enabled", "budget_tokens": 5, "reply_budget": 6}}
    async with serving() as server:
        fits = await server.client.post(CHAT, json=chat_body(**budgets, min_tokens=11))
        assert fits.status_code == 200
        refused = await server.client.post(CHAT, json=chat_body(**budgets, min_tokens=12))
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "min_tokens"


async def test_half_of_a_forced_close_is_not_shown() -> None:
    written = len(PLAIN.tokenizer.encode("<think>ab"))
    thinking = {"type": "enabled", "budget_tokens": written, "reply_budget": 2}
    text = text_for("", text=PLAIN)
    async with serving(text=text, answer="<think>ab</think>") as server:
        body = chat_body(thinking=thinking, max_tokens=written + 2)
        response = await server.client.post(CHAT, json=body)
        told = submitted(server).reasoning
        assert told is not None
        assert told.max_tokens == written
        (choice,) = response.json()["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["message"]["reasoning_content"] == "ab"
        assert not choice["message"]["content"]
