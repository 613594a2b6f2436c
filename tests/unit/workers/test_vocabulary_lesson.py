"""The tokens reach each worker process once, before the first grammar."""

from __future__ import annotations

import asyncio
import threading

import pytest

from luce.errors import InternalError, UnsupportedFeature, WorkerLost
from luce.protocol import messages as wire
from luce.protocol.frames import MAX_FRAME_BYTES
from luce.protocol.sampling import GrammarSpec, SamplingParams
from luce.testing.byte_tokenizer import pack_prompt
from luce.testing.fake_script import FakeScript
from luce.testing.fake_worker import FakeWorker
from luce.testing.stream_reader import batches
from luce.text.vocabulary import TokenVocabulary
from luce.workers.handle import WorkerHandle, WorkerRefusal, WorkerState

pytestmark = pytest.mark.anyio

SPEC = wire.LoadSpec(name="m", path="m.gguf")
VOCABULARY = TokenVocabulary([b"a", b"b", b"<end>"], (2,), (2,))
PLAIN = SamplingParams(max_tokens=9)
BOUND = SamplingParams(max_tokens=9, grammar=GrammarSpec("start: /a/"))
PROMPT = pack_prompt([104, 105])


class Source:
    """Counts how often it was asked, and can be slow."""

    def __init__(self, vocabulary: TokenVocabulary = VOCABULARY) -> None:
        self.vocabulary = vocabulary
        self.num_asked = 0
        self.threads: set[int] = set()
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self) -> TokenVocabulary:
        self.num_asked += 1
        self.threads.add(threading.get_ident())
        assert self.may_go.wait(60)
        return self.vocabulary


async def connect(handle: WorkerHandle, worker: FakeWorker) -> None:
    await handle.connect(worker.connect())
    async with asyncio.timeout(60):
        while handle.state is not WorkerState.READY:
            await asyncio.sleep(0.002)


async def disconnect(handle: WorkerHandle) -> None:
    handle.disconnect(WorkerLost("the test is over"))
    await handle.wait_down()


def kinds(worker: FakeWorker) -> list[str]:
    return [type(message).__name__ for message in worker.received]


async def submit(handle: WorkerHandle, name: str, sampling: SamplingParams) -> None:
    stream = await handle.submit(name, PROMPT, sampling)
    async for _ in batches(stream):
        pass


async def test_it_goes_ahead_of_the_first_grammar_and_not_again() -> None:
    source = Source()
    handle = WorkerHandle(SPEC, source)
    with FakeWorker() as worker:
        await connect(handle, worker)
        for name, sampling in (("a", PLAIN), ("b", BOUND), ("c", PLAIN), ("d", BOUND)):
            await submit(handle, name, sampling)
        assert kinds(worker) == ["Load", "Submit", "Vocabulary", *["Submit"] * 3]
        assert worker.received[2] == wire.Vocabulary([b"a", b"b", b"<end>"], [2], [2])
        assert worker.received[3].sampling == BOUND
        await disconnect(handle)
    assert source.num_asked == 1
    assert threading.get_ident() not in source.threads


async def test_those_who_come_meanwhile_wait_and_others_do_not() -> None:
    source = Source()
    source.may_go.clear()
    handle = WorkerHandle(SPEC, source)
    with FakeWorker() as worker:
        await connect(handle, worker)
        bound = [asyncio.create_task(submit(handle, name, BOUND)) for name in "ab"]
        await submit(handle, "free", PLAIN)
        assert kinds(worker) == ["Load", "Submit"]
        bound[0].cancel()
        await asyncio.sleep(0.01)
        source.may_go.set()
        await bound[1]
        assert kinds(worker) == ["Load", "Submit", "Vocabulary", "Submit"]
        await disconnect(handle)
    assert source.num_asked == 1
    assert bound[0].cancelled()


async def test_a_new_process_learns_anew() -> None:
    source = Source()
    handle = WorkerHandle(SPEC, source)
    for _ in range(2):
        with FakeWorker() as worker:
            await connect(handle, worker)
            await submit(handle, "a", BOUND)
            assert "Vocabulary" in kinds(worker)
            await disconnect(handle)
    assert source.num_asked == 2


async def test_a_process_that_dies_meanwhile_leaves_the_usual_error() -> None:
    source = Source()
    source.may_go.clear()
    handle = WorkerHandle(SPEC, source)
    with FakeWorker() as worker:
        await connect(handle, worker)
        waiting = asyncio.create_task(submit(handle, "a", BOUND))
        await asyncio.sleep(0.01)
        await disconnect(handle)
        source.may_go.set()
        with pytest.raises(Exception, match="not running") as caught:
            await waiting
        assert getattr(caught.value, "status", None) == 503
        assert handle.in_flight == 0


async def test_a_source_that_fails_is_asked_again() -> None:
    source = Source()
    failures = [OSError("the disk is gone")]

    def failing() -> TokenVocabulary:
        if failures:
            raise failures.pop()
        return source()

    handle = WorkerHandle(SPEC, failing)
    with FakeWorker() as worker:
        await connect(handle, worker)
        with pytest.raises(WorkerRefusal) as caught:
            await submit(handle, "a", BOUND)
        assert isinstance(caught.value.error, InternalError)
        await submit(handle, "b", BOUND)
        assert kinds(worker) == ["Load", "Vocabulary", "Submit"]
        await disconnect(handle)


@pytest.mark.parametrize(
    "source",
    [None, Source(TokenVocabulary([bytes(MAX_FRAME_BYTES)], (), ()))],
    ids=["none", "too large"],
)
async def test_a_model_without_one_follows_no_grammar(source: Source | None) -> None:
    handle = WorkerHandle(SPEC, source)
    with FakeWorker(FakeScript()) as worker:
        await connect(handle, worker)
        for name in "ab":
            with pytest.raises(WorkerRefusal) as caught:
                await submit(handle, name, BOUND)
            assert caught.value.reason == "failed"
            assert isinstance(caught.value.error, UnsupportedFeature)
        await submit(handle, "c", PLAIN)
        await disconnect(handle)
