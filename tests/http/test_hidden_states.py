"""`POST /v1/hidden_states`: what is read, which model reads, every kind of bad input (row A35)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from http_harness import Harness, Rules, eventually
from scripted_text import VOCAB_SIZE, tagged_text

from luce.protocol.sampling import HiddenRead
from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio

PATH = "/v1/hidden_states"
TEXT = tagged_text()
USER = {"role": "user", "content": "hello"}


def script(**fields: Any) -> FakeScript:
    return FakeScript(vocab_size=VOCAB_SIZE, **fields)


def serving(*scripts: FakeScript, **rules: Any) -> Harness:
    scripts = scripts or (script(),)
    return Harness(*scripts, texts=(TEXT,) * len(scripts), rules=Rules(**rules))


async def ask(server: Harness, **fields: Any) -> httpx2.Response:
    return await server.client.post(PATH, json={"messages": [USER], "layers": [0], **fields})


async def error_of(server: Harness, **fields: Any) -> dict[str, Any]:
    response = await ask(server, **fields)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def prompt_of(server: Harness, index: int = -1) -> str:
    ids = TEXT.tokenizer
    submit = server.models[0].submits()[index]
    stored = submit.prompt
    tokens = [int.from_bytes(stored[at : at + 4], "little") for at in range(0, len(stored), 4)]
    return b"".join(ids.token_bytes(token) for token in tokens).decode()


async def test_an_answer_has_every_field() -> None:
    async with serving() as server:
        answer = (await ask(server, layers=[23, 5, -1])).json()
        read = server.models[0].submits()[0].sampling.hidden
    assert read == HiddenRead((23, 5, -1))
    assert answer.pop("timings")["prefill_ms"] >= 0
    assert answer.pop("prompt_tokens") > 5
    assert answer == {
        "object": "hidden_states",
        "model": "big",
        "n_layers": 24,
        "n_embd": 3,
        "pooling": "last",
        "generation_prompt": "template",
        "last_token": answer["last_token"],
        "layers": {
            "23": {"last": [23.0] * 3},
            "5": {"last": [5.0] * 3},
            "-1": {"last": [23.0] * 3},
        },
    }


@pytest.mark.parametrize("pooling", ["mean", "both"])
async def test_means_come_beside_the_last_token(pooling: str) -> None:
    async with serving() as server:
        answer = (await ask(server, layers=[4], pooling=pooling)).json()
    assert answer["pooling"] == pooling
    assert answer["layers"] == {"4": {"last": [4.0] * 3, "mean": [2.0] * 3}}


async def test_what_is_cached_is_told_only_if_asked() -> None:
    async with serving() as server:
        kept = (await ask(server, cache_prefix=True)).json()
        plain = (await ask(server, cache_prefix=False)).json()
        assert server.models[0].submits()[0].sampling.hidden.keeps_prefix
    assert kept["cache_prefix"] == {"cached_tokens": 16}
    assert "cache_prefix" not in plain


async def test_null_is_the_default() -> None:
    async with serving() as server:
        response = await ask(server, pooling=None, generation_prompt=None, cache_prefix=None)
        answer = response.json()
    assert (answer["pooling"], answer["generation_prompt"]) == ("last", "template")
    assert "cache_prefix" not in answer


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [1.5],
        [3.0],
        ["3"],
        [True],
        [2, 2],
        [24],
        [-25],
        [2**31],
        [-(2**31) - 1],
        [2**63],
        [2**64 - 1],
        [2**64],
        [10**30],
        list(range(257)),
        5,
        "0",
        {"0": 1},
        None,
        [None],
        [[1]],
    ],
)
async def test_layers_that_are_none(layers: Any) -> None:
    async with serving() as server:
        error = await error_of(server, layers=layers)
        assert server.models[0].submits() == []
    assert error["param"].startswith("layers")


async def test_layers_are_required() -> None:
    async with serving() as server:
        response = await server.client.post(PATH, json={"messages": [USER]})
    assert response.status_code == 400
    assert "layers" in response.json()["error"]["message"]


@pytest.mark.parametrize("layers", [[23], [-24], [0], [-1], [23, -1]])
async def test_layers_at_the_borders(layers: list[int]) -> None:
    async with serving() as server:
        answer = (await ask(server, layers=layers)).json()
    assert {key: each["last"][0] for key, each in answer["layers"].items()} == {
        str(layer): float(layer % 24) for layer in layers
    }


async def test_256_layers_are_not_too_many() -> None:
    async with serving(script(num_layers=300)) as server:
        answer = (await ask(server, layers=list(range(256)))).json()
    assert len(answer["layers"]) == 256


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pooling", "max"),
        ("pooling", 1),
        ("generation_prompt", "none"),
        ("generation_prompt", True),
        ("cache_prefix", "yes"),
        ("cache_prefix", 1),
        ("messages", []),
        ("messages", None),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        ("grammar", 5),
    ],
)
async def test_other_fields_that_are_wrong(field: str, value: Any) -> None:
    async with serving() as server:
        error = await error_of(server, **{field: value})
        assert server.models[0].submits() == []
    assert field in error["param"]


async def test_bare_leaves_out_what_the_template_adds_behind_the_header() -> None:
    async with serving() as server:
        await ask(server)
        await ask(server, generation_prompt="bare")
        await ask(server, generation_prompt="bare", reasoning_effort="high")
        template, bare, thinking = (prompt_of(server, index) for index in range(3))
        answer = (await ask(server, generation_prompt="bare")).json()
    assert template.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert bare == template.removesuffix("<think>\n\n</think>\n\n")
    assert thinking == bare
    assert answer["generation_prompt"] == "bare"


async def test_bare_leaves_earlier_turns_alone() -> None:
    turns = [USER, {"role": "assistant", "content": "<think>x</think>Hi."}, USER]
    async with serving() as server:
        await ask(server, messages=turns)
        await ask(server, messages=turns, generation_prompt="bare")
        template, bare = (prompt_of(server, index) for index in range(2))
    assert template.startswith(bare)
    assert bare.endswith("<|im_start|>assistant\n")
    assert bare.count("<|im_start|>assistant") == 2


async def test_bare_without_an_open_header() -> None:
    async with serving() as server:
        error = await error_of(
            server,
            generation_prompt="bare",
            chat_template_kwargs={"add_generation_prompt": False},
        )
    assert error["param"] == "generation_prompt"


async def test_several_models_need_an_exact_name() -> None:
    async with serving(script(), script(num_layers=2)) as server:
        for name in (None, "", "auto"):
            assert (await error_of(server, model=name))["param"] == "model"
        unknown = await ask(server, model="Big")
        assert unknown.status_code == 404
        answer = (await ask(server, model="small", layers=[1])).json()
        assert (answer["model"], answer["n_layers"]) == ("small", 2)
        # The range is that of the model asked for.
        assert (await error_of(server, model="small", layers=[2]))["param"] == "layers"
        assert (await ask(server, model="big", layers=[2])).status_code == 200


async def test_the_only_model_answers_to_any_name() -> None:
    async with serving() as server:
        assert (await ask(server, model="gpt-5")).json()["model"] == "big"


async def test_the_wrong_shape_is_said_before_the_wrong_model() -> None:
    async with serving(script(), script()) as server:
        error = await error_of(server, model="nobody", layers=[1, 1])
    assert error["param"] == "layers"


async def test_it_waits_its_turn_and_a_full_queue_refuses_it() -> None:
    async with serving(script(max_concurrency=1, hold_after=0), queue_limit=1) as server:
        first = asyncio.create_task(ask(server))
        await eventually(lambda: server.models[0].worker.in_flight == 1)
        second = asyncio.create_task(ask(server))
        await eventually(lambda: server.router.num_waiting == 1)
        refused = await ask(server)
        assert refused.status_code == 503
        server.models[0].worker.release()
        assert (await first).status_code == 200
        await eventually(lambda: len(server.models[0].submits()) == 2)
        server.models[0].worker.release()
        assert (await second).status_code == 200


async def test_a_client_that_leaves_cancels_it() -> None:
    async with serving(script(hold_after=0)) as server:
        task = asyncio.create_task(ask(server))
        await eventually(lambda: server.models[0].worker.in_flight == 1)
        task.cancel()
        await eventually(lambda: server.models[0].worker.in_flight == 0)
        await eventually(lambda: server.router.views()[0].in_flight == 0)


async def test_a_worker_that_fails_is_500() -> None:
    async with serving(script(fail_error="InternalError")) as server:
        response = await ask(server)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")


async def test_a_worker_that_dies_is_503() -> None:
    async with serving(script(hold_after=0)) as server:
        task = asyncio.create_task(ask(server))
        await eventually(lambda: server.models[0].worker.in_flight == 1)
        server.models[0].worker.crash()
        response = await task
    assert (response.status_code, response.json()["error"]["code"]) == (503, "worker_lost")


async def test_a_prompt_too_long_for_the_model() -> None:
    async with serving(script(max_ctx=32)) as server:
        error = await error_of(server, messages=[{"role": "user", "content": "x " * 200}])
    assert error["code"] == "context_length_exceeded"
