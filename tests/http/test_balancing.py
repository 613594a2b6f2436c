"""Acceptance of load balancing over real HTTP: several models, each with its own tokenizer,
template and sampling defaults, in front of scripted workers."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx2
import pytest
from http_harness import (
    CHAT,
    ByteText,
    Harness,
    Rules,
    chat_body,
    connected,
    events_of,
    eventually,
    text_of,
)

from luce.listener.dialects.openai_chat import OpenAIChat
from luce.testing.fake_script import FakeScript
from luce.testing.tiny_models import tiny_llama, tiny_qwen2
from luce.text.bundle import TextBundle

pytestmark = pytest.mark.anyio

PLAIN_TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}[reply] "
)
VOCAB = 1000
BYTE_ID = 3
"""Id of byte 0 in a tiny vocabulary."""
QUESTION = "What is the capital of the user?"


def saying(text: str, **fields: Any) -> FakeScript:
    """A worker of a tiny model that answers with a text."""
    return FakeScript(vocab_size=VOCAB, reply=[BYTE_ID + byte for byte in text.encode()], **fields)


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> TextBundle:
    """A Llama in GGUF with ChatML; greedy by default."""
    return TextBundle.load(tiny_llama(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def bracketed(tmp_path_factory: pytest.TempPathFactory) -> TextBundle:
    """A Qwen2 in safetensors with another template and warm sampling."""
    folder = tmp_path_factory.mktemp("qwen2")
    template = folder / "template.jinja"
    template.write_text(PLAIN_TEMPLATE)
    generation = {"temperature": 0.75, "top_k": 20}
    model = tiny_qwen2(folder / "model", container="safetensors", generation=generation)
    return TextBundle.load(model, template)


def prompt_of(text: Any, **fields: Any) -> bytes:
    """The prompt a model gets for the question."""
    body = json.dumps(chat_body(QUESTION, **fields)).encode()
    prompt: bytes = text.prepare(OpenAIChat().decode(body)).prompt_bytes
    return prompt


def blocks_are_free(server: Harness) -> bool:
    return all(m.handle.stats.free_blocks == m.handle.stats.total_blocks for m in server.models)


# --- 1: two models side by side -------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2])
async def test_full_models_refuse_the_next_and_go_on_independently(slots: int) -> None:
    script = FakeScript(max_concurrency=slots, hold_after=2)
    async with Harness(script, script, rules=Rules(queue_limit=0)) as server:
        asks = []
        for index in range(2 * slots):
            asks.append(asyncio.create_task(server.ask(f"request {index}", stream=True)))
            await server.running(index + 1)
        refused = await server.ask("one too many")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "overloaded"
        big, small = server.models
        small.worker.release()
        answers = await asyncio.gather(*asks[slots:])
        assert not any(ask.done() for ask in asks[:slots])
        assert big.worker.in_flight == slots
        big.worker.release()
        answers = [*await asyncio.gather(*asks[:slots]), *answers]
        models = [{event["model"] for event in events_of(a.text)[:-1]} for a in answers]
        assert models == [{"big"}] * slots + [{"small"}] * slots
        assert [text_of(events_of(a.text)) for a in answers] == [
            f"request {index}" for index in range(2 * slots)
        ]
        await server.idle()
        assert blocks_are_free(server)


async def test_each_model_has_its_own_template_tokenizer_and_defaults(
    chatml: TextBundle, bracketed: TextBundle
) -> None:
    """One body, three models: each gets what it would get alone, and nothing of the others."""
    scripts = (
        saying("from big", max_concurrency=1, hold_after=1),
        saying("from small", max_concurrency=1, hold_after=1),
        FakeScript(reply=list(b"from third")),
    )
    bytewise = ByteText(prefix="<", generation_defaults={"temperature": 0.25, "min_p": 0.5})
    async with Harness(*scripts, texts=(chatml, bracketed, bytewise)) as server:  # type: ignore[arg-type]
        asks = []
        for index in range(3):
            asks.append(asyncio.create_task(server.ask(QUESTION, seed=7, top_p=0.5)))
            await eventually(lambda n=index: server.models[n].submits())  # type: ignore[misc]
        for model in server.models[:2]:
            model.worker.release()
        answers = [answer.json() for answer in await asyncio.gather(*asks)]
        await server.idle()
    assert [answer["model"] for answer in answers] == ["big", "small", "third"]
    contents = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert contents == ["from big", "from small", "from third"]
    submits = [model.submits()[0] for model in server.models]
    prompts = [prompt_of(text) for text in (chatml, bracketed, bytewise)]
    assert [submit.prompt for submit in submits] == prompts
    assert [answer["usage"]["prompt_tokens"] for answer in answers] == [
        len(prompt) // 4 for prompt in prompts
    ]
    assert len({len(prompt) for prompt in prompts}) == 3
    sampling = [(s.sampling.temperature, s.sampling.top_k, s.sampling.min_p) for s in submits]
    assert sampling == [(0.0, 0, 0.0), (0.75, 20, 0.0), (0.25, 0, 0.5)]
    assert {(s.sampling.seed, s.sampling.top_p) for s in submits} == {(7, 0.5)}


async def test_an_attempt_elsewhere_leaves_no_trace(
    chatml: TextBundle, bracketed: TextBundle
) -> None:
    refusing = saying("x", refuse_next=1)
    async with Harness(refusing, saying("y"), texts=(chatml, bracketed)) as server:  # type: ignore[arg-type]
        fallen = await server.ask(QUESTION, stop=["|"])
        direct = server.models[1].submits()[0]
        assert fallen.json()["model"] == "small"
        assert direct.prompt == prompt_of(bracketed)
        assert direct.sampling.stop_token_ids == bracketed.stop_token_ids
        await server.idle()


# --- 2: no KV room, slots free --------------------------------------------------------------


async def test_primary_full_by_kv_falls_back_with_one_status_line() -> None:
    """Four slots, four blocks: the second request finds a slot and no blocks."""
    tight = FakeScript(max_concurrency=4, kv_pool_tokens=64, max_ctx=64, hold_after=0)
    async with Harness(tight, FakeScript()) as server:
        running = asyncio.create_task(server.ask("x" * 40))
        await server.running(1)
        async with server.slow_reader() as client:
            body = json.dumps(chat_body("y" * 40, stream=True)).encode()
            await client.send("POST", CHAT, body, {"Connection": "close"})
            raw = await client.read_all()
        assert raw.count(b"HTTP/1.1") == 1
        assert raw.startswith(b"HTTP/1.1 200")
        assert raw.count(b'"model":"small"') >= 40
        assert b'"model":"big"' not in raw
        assert raw.count(b"[DONE]") == 1
        assert server.models[0].worker.max_in_flight == 1
        server.models[0].worker.release()
        assert (await running).json()["model"] == "big"
        await server.idle()
        assert blocks_are_free(server)


# --- 3: what the client calls the model -----------------------------------------------------

NAMES: list[Any] = [None, "auto", "", "big", "small", "gpt-4o-mini", "Ünïcode/✓"]


@pytest.mark.parametrize("stream", [False, True])
async def test_every_name_follows_priority(stream: bool) -> None:
    script = FakeScript(max_concurrency=1, hold_after=1)
    async with Harness(script, FakeScript(), rules=Rules(queue_limit=0)) as server:
        running = asyncio.create_task(server.ask("hold", model="small"))
        await eventually(lambda: server.models[0].worker.in_flight == 1)
        for name in NAMES:
            answer = await server.ask("x", model=name, stream=stream)
            assert b'"model":"small"' in answer.content
        server.models[0].worker.release()
        assert (await running).json()["model"] == "big"
        assert (await server.ask("x", model=42)).status_code == 400
        await server.idle()


async def test_reversed_priority_swaps_the_order_and_nothing_else(
    chatml: TextBundle, bracketed: TextBundle
) -> None:
    seen: list[dict[str, Any]] = []
    for texts in ((chatml, bracketed), (bracketed, chatml)):
        scripts = (saying("a", max_concurrency=1, hold_after=1), saying("a"))
        async with Harness(*scripts, texts=texts) as server:  # type: ignore[arg-type]
            first = asyncio.create_task(server.ask(QUESTION))
            await eventually(lambda: server.models[0].submits())
            await server.ask(QUESTION)
            server.models[0].worker.release()
            await first
            by_text = zip(texts, server.models, strict=True)
            seen.append({t.architecture: m.submits()[0] for t, m in by_text})
    for architecture in ("llama", "qwen2"):
        one, other = (submits[architecture] for submits in seen)
        assert (one.prompt, one.sampling) == (other.prompt, other.sampling)


# --- 4: the queue ---------------------------------------------------------------------------


@pytest.mark.parametrize("freed", [0, 1])
async def test_a_waiter_goes_to_whichever_model_frees_first(freed: int) -> None:
    hold = FakeScript(max_concurrency=1, hold_after=0)
    async with Harness(hold, hold) as server:
        running = [asyncio.create_task(server.ask("run")) for _ in range(2)]
        await server.running(2)
        waiting = asyncio.create_task(server.ask("wait"))
        await eventually(lambda: server.router.num_waiting == 1)
        model = server.models[freed]
        model.worker.release()
        await eventually(lambda: len(model.submits()) == 2)
        await eventually(lambda: server.router.num_waiting == 0)
        for other in server.models:
            other.worker.release()
        assert (await waiting).json()["model"] == model.name
        await asyncio.gather(*running)
        await server.idle()


async def test_waiters_are_served_in_order() -> None:
    hold = FakeScript(max_concurrency=1, hold_after=0)
    async with Harness(hold, hold) as server:
        asks = []
        for index in range(10):
            asks.append(asyncio.create_task(server.ask(f"{index}")))
            await eventually(
                lambda n=index + 1: server.in_flight() + server.router.num_waiting == n  # type: ignore[misc]
            )
        await server.running(2)
        served = [prompt for model in server.models for prompt in model.prompts()]
        for number in range(8):
            model = server.models[(0, 0, 1)[number % 3]]
            model.worker.release()
            await eventually(
                lambda n=number + 3: sum(len(m.submits()) for m in server.models) == n  # type: ignore[misc]
            )
            served.append(model.prompts()[-1])
        assert served == [str(index) for index in range(10)]
        for model in server.models:
            model.worker.release()
        assert {(await ask).status_code for ask in asks} == {200}
        await server.idle()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_waiter_that_leaves_gives_its_place_back(how: str) -> None:
    hold = FakeScript(max_concurrency=1, hold_after=0)
    async with Harness(hold, hold, rules=Rules(queue_limit=1)) as server:
        running = [asyncio.create_task(server.ask("run")) for _ in range(2)]
        await server.running(2)
        async with server.slow_reader() as client:
            await client.send("POST", CHAT, json.dumps(chat_body("leaves")).encode())
            await eventually(lambda: server.router.num_waiting == 1)
            assert (await server.ask("overflow")).status_code == 503
            getattr(client, how)()
            await eventually(lambda: server.router.num_waiting == 0)
        stays = asyncio.create_task(server.ask("stays"))
        await eventually(lambda: server.router.num_waiting == 1)
        answers = await server.let_go(*running, stays)
        assert [answer.status_code for answer in answers] == [200] * 3
        assert "leaves" not in [p for model in server.models for p in model.prompts()]
        await server.idle()


async def test_retry_after_comes_from_the_measured_rate() -> None:
    """Two requests a second, one slot: with three ahead the fourth should come back in two."""
    now = [0.0]
    script = FakeScript(reply=[97], hold_after=0, max_concurrency=1)
    async with Harness(script, rules=Rules(queue_limit=3, clock_s=lambda: now[0])) as server:
        for _ in range(2):
            measured = asyncio.create_task(server.ask("measured"))
            await server.running(1)
            now[0] += 0.5
            await server.let_go(measured)
            await server.idle()
        asks = [asyncio.create_task(server.ask("run")) for _ in range(4)]
        await eventually(lambda: server.router.num_waiting == 3)
        refused = await server.ask("refused")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        answers = await server.let_go(*asks)
        assert [answer.status_code for answer in answers] == [200] * 4
        await server.idle()


async def test_shutdown_refuses_waiters_and_lets_both_models_finish() -> None:
    hold = FakeScript(max_concurrency=1, hold_after=1)
    async with Harness(hold, hold) as server:
        running = [asyncio.create_task(server.ask("run", stream=True)) for _ in range(2)]
        await server.running(2)
        waiting = [asyncio.create_task(server.ask("wait", stream=s)) for s in (False, True)]
        await eventually(lambda: server.router.num_waiting == 2)
        server.router.shut_down()
        for refused in await asyncio.gather(*waiting):
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
        assert server.router.num_waiting == 0
        for model in server.models:
            model.worker.release()
        for answer in await asyncio.gather(*running):
            assert events_of(answer.text)[-1] == "[DONE]"
        await server.idle()


# --- 5: room without a retirement -----------------------------------------------------------


async def test_the_tick_sees_room_behind_a_busy_fallback() -> None:
    """The primary's worker says no twice, its neighbour is full: nobody retires, all is served."""
    primary = FakeScript(refuse_next=2)
    async with Harness(primary, FakeScript(max_concurrency=1, hold_after=0)) as server:
        held = asyncio.create_task(server.ask("held"))
        await eventually(lambda: server.models[1].worker.in_flight == 1)
        assert (await server.ask("x")).json()["model"] == "big"
        assert len(server.models[0].submits()) == 3
        server.models[1].worker.release()
        assert (await held).json()["model"] == "small"
        await server.idle()


# --- 6: what fits ---------------------------------------------------------------------------

SMALL_CTX = {"max_ctx": 32, "kv_pool_tokens": 1024}
SMALL_POOL = {"max_ctx": 1024, "kv_pool_tokens": 32}


@pytest.mark.parametrize("limits", [SMALL_CTX, SMALL_POOL], ids=["context", "pool"])
async def test_misfit_goes_to_the_model_that_holds_it(limits: dict[str, int]) -> None:
    async with Harness(FakeScript(**limits), FakeScript(max_ctx=256)) as server:
        assert (await server.ask("x" * 31)).json()["model"] == "big"
        assert (await server.ask("x" * 32)).json()["model"] == "small"
        assert len(server.models[0].submits()) == 1
        refused = await server.ask("x" * 256)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        # Of the model that holds most, not of the first: a client shortens to what is said.
        assert "holds at most 256" in error["message"]
        await server.idle()


@pytest.mark.parametrize("stream", [False, True])
async def test_misfit_everywhere_is_a_400_at_once_while_all_are_busy(stream: bool) -> None:
    scripts = [
        FakeScript(max_concurrency=1, hold_after=0, **limits) for limits in (SMALL_CTX, SMALL_POOL)
    ]
    async with Harness(*scripts) as server:
        running = [asyncio.create_task(server.ask("run")) for _ in range(2)]
        await server.running(2)
        refused = await server.ask("x" * 40, stream=stream)
        assert not any(ask.done() for ask in running)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "messages"
        assert server.router.num_waiting == 0
        for model in server.models:
            model.worker.release()
        await asyncio.gather(*running)
        await server.idle()


async def test_misfit_waits_for_the_one_that_holds_it_not_for_an_idle_one() -> None:
    scripts = (FakeScript(max_ctx=32), FakeScript(max_ctx=256, max_concurrency=1, hold_after=0))
    async with Harness(*scripts) as server:
        running = asyncio.create_task(server.ask("x" * 40))
        await eventually(lambda: server.models[1].worker.in_flight == 1)
        waiting = asyncio.create_task(server.ask("y" * 40))
        await eventually(lambda: server.router.num_waiting == 1)
        assert (await server.ask("short")).json()["model"] == "big"
        answers = await server.let_go(running, waiting)
        assert [answer.json()["model"] for answer in answers] == ["small", "small"]
        await server.idle()


@pytest.mark.parametrize(
    ("sizes", "max_tokens", "model", "num_tokens"),
    [
        pytest.param((64, 256), 40, "big", 40, id="both hold it"),
        pytest.param((64, 256), 100, "small", 100, id="the other holds all of it"),
        pytest.param((64, 256), 9999, "small", 246, id="none holds it: the roomiest, cut"),
        pytest.param((256, 64), 9999, "big", 246, id="the roomiest is the primary"),
        pytest.param((64, 64), 9999, "big", 54, id="equally roomy: by priority"),
        pytest.param((64, 256), None, "big", 54, id="no cap makes nobody unfit"),
    ],
)
async def test_output_cap(
    sizes: tuple[int, int], max_tokens: int | None, model: str, num_tokens: int
) -> None:
    scripts = [FakeScript(max_ctx=size, reply=[97] * 500) for size in sizes]
    async with Harness(*scripts) as server:
        fields = {} if max_tokens is None else {"max_tokens": max_tokens}
        answer = (await server.ask("0123456789", **fields)).json()
        assert answer["model"] == model
        assert answer["usage"]["completion_tokens"] == num_tokens
        assert answer["choices"][0]["finish_reason"] == "length"
        await server.idle()


async def test_equally_roomy_models_share_requests_with_a_large_cap() -> None:
    script = FakeScript(max_ctx=64, max_concurrency=1, hold_after=1)
    async with Harness(script, script) as server:
        asks = [asyncio.create_task(server.ask("x", max_tokens=9999)) for _ in range(2)]
        await server.running(2)
        for model in server.models:
            model.worker.release()
        assert {(await ask).json()["model"] for ask in asks} == {"big", "small"}
        await server.idle()


async def test_a_cut_answer_is_better_than_none() -> None:
    """The only model with enough room is gone: the small one answers, cut."""
    async with Harness(FakeScript(max_ctx=64), FakeScript(max_ctx=256, crash="submit")) as server:
        for _ in range(2):
            answer = await server.ask("x", max_tokens=100)
            assert answer.json()["model"] == "big"
        await server.idle()


# --- 7: failures give capacity back ---------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_failure_is_a_500_without_fallback_and_gives_capacity_back(
    stream: bool,
) -> None:
    failing = FakeScript(reply=[], fail_error="InternalError", max_concurrency=1)
    async with Harness(failing, FakeScript(), rules=Rules(queue_limit=0)) as server:
        for _ in range(3):
            answer = await server.ask("x", stream=stream)
            if stream:
                errors = [e for e in events_of(answer.text)[:-1] if "error" in e]
                assert [e["error"]["code"] for e in errors] == ["internal_error"]
            else:
                assert answer.status_code == 500
            await server.idle()
        assert server.models[1].submits() == []
        assert blocks_are_free(server)


async def test_bad_bodies_take_nothing() -> None:
    async with Harness(
        FakeScript(max_concurrency=1), FakeScript(max_concurrency=1), rules=Rules(queue_limit=0)
    ) as server:
        bad: list[dict[str, Any]] = [
            {"content": b"{"},
            {"json": {}},
            {"json": {"messages": []}},
            {"json": {"messages": "hi"}},
            {"json": chat_body("x", temperature="hot")},
            {"json": chat_body("x", max_tokens=-1)},
            {"json": chat_body("x", logit_bias={"999": 1})},
            {"json": chat_body("refuse me")},
        ]
        for request in bad:
            assert (await server.client.post(CHAT, **request)).status_code == 400
        await server.idle()
        assert all(model.submits() == [] for model in server.models)
        assert (await server.ask("x")).json()["model"] == "big"


# --- 8: clients that leave ------------------------------------------------------------------


async def test_reset_in_a_step_keeps_the_capacity_until_the_worker_has_retired_it() -> None:
    """The listener knows at once that the client is gone; the slot is the worker's to give."""
    script = FakeScript(max_concurrency=1, hold_after=1, late_cancel=True)
    async with Harness(script, FakeScript(), rules=Rules(queue_limit=0)) as server:
        big = server.models[0]
        async with server.slow_reader() as client:
            await client.send("POST", CHAT, json.dumps(chat_body("leaves", stream=True)).encode())
            await eventually(lambda: big.worker.in_flight == 1)
            client.reset()
            await eventually(lambda: len(big.cancels()) == 1)
        await eventually(lambda: server.generator.num_running == 0)
        assert server.router.views()[0].in_flight == 1
        assert (await server.ask("meanwhile")).json()["model"] == "small"
        big.worker.release()
        await server.idle()
        assert [retired.finish for retired in big.worker.retired] == ["cancelled"]
        big.worker.release()
        asks = asyncio.create_task(server.ask("after"))
        await eventually(lambda: big.worker.in_flight == 1)
        big.worker.release()
        assert (await asks).json()["model"] == "big"


async def test_half_closed_client_waits_and_is_served_by_the_fallback() -> None:
    hold = FakeScript(max_concurrency=1, hold_after=0)
    async with Harness(hold, hold) as server:
        running = [asyncio.create_task(server.ask("run")) for _ in range(2)]
        await server.running(2)
        async with connected(server.port) as (reader, writer):
            body = json.dumps(chat_body("patient", stream=True)).encode()
            writer.write(b"POST %s HTTP/1.1\r\nHost: x\r\n" % CHAT.encode())
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            writer.write_eof()
            await eventually(lambda: server.router.num_waiting == 1)
            await asyncio.sleep(0.3)
            assert server.router.num_waiting == 1
            server.models[1].worker.release()
            await eventually(lambda: len(server.models[1].submits()) == 2)
            for model in server.models:
                model.worker.release()
            raw = await asyncio.wait_for(reader.read(), 60)
        assert b'"model":"small"' in raw
        assert b"[DONE]" in raw
        await asyncio.gather(*running)
        await server.idle()


async def test_a_slow_reader_holds_its_slot_until_its_output_is_drained() -> None:
    """The worker has long retired the request; the slot comes back with the last byte."""
    long = FakeScript(
        reply=[97] * 60_000,
        tokens_per_step=20,
        max_concurrency=1,
        max_ctx=70_000,
        kv_pool_tokens=10**6,
    )
    async with Harness(long, FakeScript(), rules=Rules(queue_limit=0, stall_s=30)) as server:
        async with server.slow_reader() as client:
            body = chat_body("slow", stream=True, max_tokens=60_000)
            await client.send("POST", CHAT, json.dumps(body).encode())
            await eventually(lambda: len(server.models[0].worker.retired) == 1)
            assert server.router.views()[0].in_flight == 1
            assert (await server.ask("meanwhile")).json()["model"] == "small"
            raw = b""
            while b"[DONE]" not in raw[-100:]:
                raw += await client.read(2**20)
        contents = re.findall(rb'"content":"(a+)"', raw)
        assert sum(map(len, contents)) == 60_000
        await server.idle()


# --- 11: one model alone --------------------------------------------------------------------


async def test_single_model_serves_every_name_under_its_own() -> None:
    async with Harness(FakeScript()) as server:
        for name in NAMES:
            assert (await server.ask("x", model=name)).json()["model"] == "big"
        listed = (await server.client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["big"]


async def test_models_are_listed_by_priority_with_their_context() -> None:
    async with Harness(FakeScript(max_ctx=64), FakeScript(), FakeScript(max_ctx=32)) as server:
        listed = (await server.client.get("/v1/models")).json()["data"]
        shown = [(model["id"], model["context_length"]) for model in listed]
        assert shown == [("big", 64), ("small", 4096), ("third", 32)]


# --- many at once ---------------------------------------------------------------------------


async def test_a_crowd_before_three_models_is_served_once_each() -> None:
    scripts = [
        FakeScript(max_concurrency=2, token_delay_s=0.001, kv_pool_tokens=256) for _ in range(3)
    ]
    async with Harness(*scripts, rules=Rules(queue_limit=200)) as server:
        limits = httpx2.Limits(max_connections=100)
        async with httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
            texts = [f"request {index} " + "." * (index % 60) for index in range(100)]
            answers = await asyncio.gather(
                *(
                    client.post(CHAT, json=chat_body(text, stream=i % 2 == 0))
                    for i, text in enumerate(texts)
                )
            )
        assert {answer.status_code for answer in answers} == {200}
        for index, (text, answer) in enumerate(zip(texts, answers, strict=True)):
            if index % 2 == 0:
                assert text_of(events_of(answer.text)) == text
            else:
                assert answer.json()["choices"][0]["message"]["content"] == text
        await server.idle()
        retired = [r.request_id for model in server.models for r in model.worker.retired]
        assert len(retired) == len(set(retired)) == 100
        assert all(model.worker.retired for model in server.models)
        assert blocks_are_free(server)
