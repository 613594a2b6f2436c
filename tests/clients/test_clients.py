"""Real clients against the real listener: a tool's turn and a cancelled stream each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from client_process import START_S, running
from client_server import ENDS, calling_turn, serving
from http_harness import eventually
from recipes import KEY
from roster import CLIENTS, RESULT, Client
from shapes import record_shapes

pytestmark = [pytest.mark.anyio, pytest.mark.clients, pytest.mark.timeout(400)]

ANSWER = "The answer is forty-two."
STORY = "Once upon a time there was a server. " * 400
PATIENCE_S = 30

Done = Callable[[str], None]

each_client = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.slug)


@pytest.fixture
def done(request: pytest.FixtureRequest, client: Client) -> Done:
    """Notes a step that has been seen to work, for the table at the end of the run."""
    properties: list[tuple[str, object]] = request.node.user_properties
    properties += [("client", client.name), ("version", client.version)]
    assert client.version, f"{client.package} is not installed: run `make clients`"

    def note(step: str) -> None:
        properties.append(("step", step))

    return note


@each_client
async def test_it_calls_a_tool_and_answers_with_its_result(
    client: Client, done: Done, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async with serving(calling_turn(client.call), ANSWER, (KEY,), tokens_per_step=8) as server:
        async with running(client, "turn", server.url, tmp_path / "home") as process:
            code = await process.end()
        assert server.unhappy() == [], process.output
        offers = [p for p in server.prompts() if "<tools>" in p and client.tool in p]
        assert len(offers) >= 2, process.output
        done("tool call")
        results = offers[-1].split("<tool_response>")[1:]
        assert [result.count(RESULT) for result in results] == [1, 1], process.output
        done("result")
        assert ANSWER in process.output
        assert code == 0
        streams = [e for e in server.asked(client.path) if e.json.get("stream")]
        assert len(streams) >= 2
        assert all(ENDS[client.path] in e.answer for e in streams)
        done("text")
        if request.config.getoption("--record-shapes", default=False):
            record_shapes(client, server.asked(client.path), tmp_path)


@each_client
async def test_its_cancelled_stream_ends_the_generation(
    client: Client, done: Done, tmp_path: Path
) -> None:
    async with serving(STORY, STORY, (KEY,), token_delay_s=0.02) as server:
        async with running(client, "cancel", server.url, tmp_path / "home") as process:
            if client.driver is not None:
                await process.wait_for("streaming")
            await eventually(lambda: server.is_streaming(client.path), START_S)
            if client.driver is not None:
                process.tell()
                await process.wait_for("closed")
            else:
                process.interrupt()
            model = server.harness.models[0]
            await eventually(lambda: model.cancels() != [], PATIENCE_S)
            await eventually(lambda: server.harness.in_flight() == 0, PATIENCE_S)
        await server.harness.idle()
        done("cancel")
