"""What a worker finds wrong with a grammar: a 400 of that request, and of no other."""

from __future__ import annotations

import json

import httpx2
import pytest
from http_harness import Harness
from scripted_text import tagged_text, writing

from luce.protocol.messages import Vocabulary

pytestmark = pytest.mark.anyio

TEXT = tagged_text()
CHAT = "/v1/chat/completions"
DETAIL = "The model cannot follow it."


def serving(answer: str = "ab", **script: object) -> Harness:
    return Harness(writing(TEXT, answer, **script), texts=(TEXT,))


async def ask(server: Harness, **fields: object) -> httpx2.Response:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return await server.client.post(CHAT, json=body)


async def test_the_worker_learns_the_tokens_before_the_first_grammar() -> None:
    async with serving() as server:
        for fields in ({}, {"regex": "[ab]+"}, {"grammar": "start: /[ab]+/"}):
            assert (await ask(server, **fields)).status_code == 200
        received = server.models[0].worker.received
        kinds = [type(message).__name__ for message in received]
        assert kinds == ["Load", "Submit", "Vocabulary", "Submit", "Submit"]
        known = received[2]
        assert isinstance(known, Vocabulary)
        assert len(known.tokens) == TEXT.vocab_size
        assert known.end_ids == list(TEXT.stop_token_ids)


async def test_a_grammar_that_the_worker_refuses_is_a_bad_request() -> None:
    refusal = {
        "refuse_next": 1,
        "refuse_reason": "failed",
        "refuse_error": "InvalidGrammar",
        "refuse_detail": DETAIL,
    }
    async with serving(**refusal) as server:
        response = await ask(server, regex="[ab]+")
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["message"]) == ("invalid_schema", DETAIL)
        assert (await ask(server, regex="[ab]+")).status_code == 200


async def test_a_grammar_that_breaks_while_it_runs_ends_its_request_in_words() -> None:
    async with serving(fail_error="InvalidGrammar") as server:
        whole = await ask(server, regex="[ab]+")
        assert whole.status_code == 400
        assert whole.json()["error"]["code"] == "invalid_schema"
        streamed = await ask(server, regex="[ab]+", stream=True)
        assert streamed.status_code == 200
        frames = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
        assert json.loads(frames[-1])["error"]["code"] == "invalid_schema"
