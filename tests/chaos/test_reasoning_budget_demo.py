"""A real model whose reasoning is closed by force, through the command line and HTTP.

The demo model was never taught to reason; a template that opens reasoning for it and a budget
that ends it show that the worker does what it is told.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, eventually

from luce.loaders.opening import read_text_metadata
from luce.text.bundle import TextBundle
from luce.text.model_card import card_stem

pytestmark = pytest.mark.anyio

TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}"""
HINT = " Enough of that."
THINK_MAX, REPLY, LOW = 24, 40, 9


def card(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "source": "a test",
        "verified_at": "2026-11-29",
        "max_tokens": 200,
        "thinking_terminator_hint": f"{HINT}</think>",
        "sampling": {"temperature": 0},
    }


@pytest.fixture(scope="module")
async def server(
    demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("budgets")
    (folder / "think.jinja").write_text(TEMPLATE, encoding="utf-8")
    name = read_text_metadata(demo_model).name
    path = folder / f"{card_stem(name)}.json"
    path.write_text(json.dumps(card(name)), encoding="utf-8")
    words = f"""
        --model {demo_model} --port 0 --max-ctx 512 --max-concurrency 2
        --chat-template-file {folder / "think.jinja"}
        --think-max-tokens {THINK_MAX} --hard-limit-reply-budget {REPLY}
        --reasoning-effort-low {LOW} --model-cards {folder}
    """
    command = [sys.executable, "-m", "luce", "serve", *words.split()]
    async with ServerProcess(command) as server:
        yield server


@pytest.fixture(scope="module")
def num_closing(demo_model: Path) -> int:
    """Tokens of what closes reasoning."""
    return len(TextBundle.load(demo_model).tokenizer.encode(f"{HINT}</think>"))


QUESTION = "Tell me a long story."
"""Without a budget the model would write about it for as long as it may."""


async def ask(server: ServerProcess, **fields: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """The message, and how many tokens were reasoning and how many there are in all."""
    response = await server.ask(QUESTION, ignore_eos=True, **fields)
    assert response.status_code == 200, response.text
    body = response.json()
    usage = body["usage"]
    tokens = {
        "reasoning": usage["completion_tokens_details"]["reasoning_tokens"],
        "all": usage["completion_tokens"],
    }
    return body["choices"][0]["message"], tokens


def enabled(**fields: Any) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", **fields}}


async def test_without_a_budget_it_thinks_to_the_end(server: ServerProcess) -> None:
    fields = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 60}
    message, tokens = await ask(server, **fields)
    assert not message["content"]
    assert HINT not in message["reasoning_content"]
    assert tokens == {"reasoning": 60, "all": 60}


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        (enabled(budget_tokens=10), 10),
        (enabled(budget_tokens=1000), THINK_MAX),
        (enabled(), THINK_MAX),
        ({"reasoning_effort": "low"}, LOW),
        (enabled(budget_tokens=0), 0),
    ],
)
async def test_reasoning_is_closed_where_its_budget_ends(
    server: ServerProcess, num_closing: int, fields: dict[str, Any], thinking: int
) -> None:
    message, tokens = await ask(server, **fields)
    assert message["reasoning_content"].endswith(HINT.strip() if thinking == 0 else HINT)
    assert message["content"]
    assert tokens["reasoning"] == thinking + num_closing
    assert tokens["all"] == thinking + REPLY


async def test_the_same_thoughts_up_to_there_and_in_a_stream(server: ServerProcess) -> None:
    free, _ = await ask(
        server, chat_template_kwargs={"enable_thinking": True}, max_tokens=THINK_MAX
    )
    message, _ = await ask(server, **enabled())
    assert message["reasoning_content"] == free["reasoning_content"].rstrip() + HINT
    stream = server.stream(QUESTION, ignore_eos=True, **enabled())
    assert (await stream.end()).text == message["content"]


async def test_together_as_alone(server: ServerProcess) -> None:
    budgets = [enabled(budget_tokens=n) for n in (3, 11)]
    alone = [await ask(server, **fields) for fields in budgets]
    together = await asyncio.gather(*(ask(server, **fields) for fields in budgets))
    assert list(together) == alone


async def test_the_log_says_that_it_was_closed(server: ServerProcess) -> None:
    await ask(server, **enabled(budget_tokens=1))
    await eventually(lambda: any("reasoning_close=hard" in line for line in server.log))


async def test_with_a_schema_for_the_answer(server: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    response = await server.ask(QUESTION, response_format=form, **enabled(budget_tokens=7))
    assert response.status_code == 200, response.text
    message = response.json()["choices"][0]["message"]
    assert message["reasoning_content"].endswith(HINT)
    assert json.loads(message["content"])["city"] in ("Oslo", "Rome")
