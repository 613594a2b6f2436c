"""One line per finished request, with what happened to it and never what was said."""

from __future__ import annotations

import asyncio
import logging

import pytest
from http_harness import CHAT, Harness, chat_body, eventually

from luce.testing.fake_script import FakeScript

pytestmark = pytest.mark.anyio


def finished(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.getMessage() == "request finished"]


async def test_served(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Harness(FakeScript(refuse_next=1), FakeScript(hold_after=1)) as server:
        asked = asyncio.create_task(server.ask("my secret"))
        # A rate takes tokens that come at two times.
        await eventually(lambda: server.models[1].handle.num_decoding == 1)
        server.models[1].worker.release()
        await asked
        await server.client.get("/health")
    (line,) = finished(caplog)
    fields = vars(line)
    assert line.levelno == logging.INFO
    assert fields["status"] == 200
    assert fields["model"] == "small"
    assert fields["passed_over"] == "big:busy"
    assert fields["tokens"] == len("my secret") + 1
    assert fields["finish"] == "stop"
    assert fields["queue_ms"] <= fields["ttft_ms"] <= fields["total_ms"]
    assert fields["tokens_per_s"] > 0
    assert "secret" not in caplog.text


async def test_refused_and_gone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Harness(FakeScript(hold_after=0)) as server:
        await server.ask("my secret", temperature=-1)
        ask = asyncio.create_task(server.client.post(CHAT, json=chat_body("my secret")))
        await server.running(1)
        ask.cancel()
        await asyncio.gather(ask, return_exceptions=True)
        await eventually(lambda: len(finished(caplog)) == 2)
    refused, gone = (vars(record) for record in finished(caplog))
    assert (refused["status"], refused["error"]) == (400, "invalid_request_error")
    assert gone["status"] == 499
    assert gone["model"] == "big"
    assert "secret" not in caplog.text


async def test_bug_of_ours_is_a_500_with_a_trace_in_the_log_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Harness() as server:

        def broken(*_: object) -> None:
            raise ZeroDivisionError("inner detail")

        monkeypatch.setattr(server.models[0].text, "prepare", broken)
        response = await server.ask("x")
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal_error"
        assert "inner detail" not in response.text
        monkeypatch.undo()
        assert (await server.ask("x")).status_code == 200
        await server.idle()
    assert "inner detail" in caplog.text
