"""Schemathesis on the generated document: what it allows is answered as it says, never by 500."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import schemathesis
from http_harness import Harness, Rules
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from scripted_text import VOCAB_SIZE, tagged_text

from luce.listener.openapi.operations import OPERATIONS, Operation
from luce.testing.fake_script import FakeScript

MAX_EXAMPLES = 20
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


class ThreadedServer:
    """A harness on an event loop of its own: Schemathesis waits for each answer."""

    def __init__(self) -> None:
        self.harness: Future[Harness] = Future()
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        script = FakeScript(vocab_size=VOCAB_SIZE, reply=[5, 6, 7], max_concurrency=8)
        rules = Rules(max_body_bytes=2**24, queue_limit=32)
        async with Harness(script, texts=(tagged_text(),), rules=rules) as server:
            self.harness.set_result(server)
            await self._stop.wait()
            await server.idle()

    def close(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)


@pytest.fixture(scope="module")
def api() -> Iterator[BaseSchema]:
    server = ThreadedServer()
    yield schemathesis.openapi.from_url(f"{server.harness.result(60).url}/openapi.json")
    server.close()


POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
RUNS = [(op, POSITIVE) for op in OPERATIONS]
RUNS += [(op, NEGATIVE) for op in OPERATIONS if op.request is not None]


@pytest.mark.parametrize(
    ("op", "mode"), RUNS, ids=[f"{op.method} {op.path} {mode.value}" for op, mode in RUNS]
)
def test_answers_are_as_the_document_says(
    op: Operation, mode: GenerationMode, api: BaseSchema
) -> None:
    operation = api[op.path][op.method]
    refused = frozenset(op.refused)

    @given(operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=MAX_EXAMPLES if op.request is not None else 5,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Case) -> None:
        if mode is POSITIVE and isinstance(case.body, dict):
            # The document says that these are refused; the rest of the body should count.
            case.body = {k: v for k, v in case.body.items() if k not in refused}
        case.call_and_validate(checks=CHECKS, timeout=60)

    check()
