"""A storm over the listener's whole path to the workers: random arrivals, cancels, stalls and
crashes, after which every counter is at zero, every block is free, and every request has ended
exactly once.

`LUCE_STORM_REQUESTS` and `LUCE_STORM_SEED` choose another storm; the usual one has 10,000
requests and takes a few seconds.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from luce.config.model import ModelConfig
from luce.errors import ApiError
from luce.listener.admission import Admissions
from luce.listener.connection import SlowClient
from luce.listener.context import RequestContext
from luce.listener.generate import Generator
from luce.listener.served import ServedModel, ServedModels
from luce.protocol.messages import LoadSpec, Retired, Submit
from luce.protocol.sampling import GrammarSpec, ReasoningBudget, SamplingParams
from luce.routing.policy import PrimaryFirst
from luce.routing.router import Router
from luce.testing.byte_tokenizer import pack_prompt
from luce.testing.fake_script import FakeScript
from luce.testing.fake_worker import FakeWorker
from luce.text.budgets import BudgetOptions, resolve_budgets
from luce.text.call import ChatMessage, GenerationCall
from luce.text.events import Failed, Finished, GenEvent, TextDelta
from luce.text.forced_close import ForcedClose
from luce.text.pipeline import OutputPipeline
from luce.text.thinking import Thinking
from luce.text.vocabulary import TokenVocabulary
from luce.workers.handle import WorkerHandle, WorkerState

pytestmark = pytest.mark.anyio

NUM_REQUESTS = int(os.environ.get("LUCE_STORM_REQUESTS", "10000"))
SEED = int(os.environ.get("LUCE_STORM_SEED", "20261129"))
ARRIVALS_AT_ONCE = 40
CRASH_EVERY = 200
QUEUE_LIMIT = 24

SCRIPTS = (
    FakeScript(max_concurrency=3, max_ctx=64, kv_pool_tokens=160, late_cancel=True),
    FakeScript(max_concurrency=2, max_ctx=128, kv_pool_tokens=256),
    FakeScript(max_concurrency=4, max_ctx=96, kv_pool_tokens=96, tokens_per_step=3),
)
"""Three models of different shapes; one is short of rows, one of blocks."""


class Letters:
    """Text side of a model whose tokens are bytes."""

    vocab_size = 256
    context_length = 128
    architecture = "fake"
    generation_defaults: dict[str, float] = {}  # noqa: RUF012 - the protocol has it as an attribute
    thinking = Thinking(resolve_budgets(BudgetOptions(), None, "fake"))

    def prepare(self, call: GenerationCall, limit: int | None = None) -> LetterPrompt:
        return LetterPrompt(pack_prompt((call.messages[0].content or "").encode()))

    def with_grammar(self, prepared: LetterPrompt) -> LetterPrompt:
        raise AssertionError("these prompts order no grammar")

    def vocabulary(self) -> TokenVocabulary:
        return TokenVocabulary([bytes([i]) for i in range(self.vocab_size)], (), ())

    def pipeline(
        self,
        prepared: LetterPrompt,
        prompt_tokens: int,
        cached_tokens: int = 0,
        budget: ReasoningBudget | None = None,
    ) -> OutputPipeline:
        return OutputPipeline(LetterDecoder(), (), prompt_tokens=prompt_tokens)  # type: ignore[arg-type]


@dataclass(frozen=True)
class LetterPrompt:
    prompt_bytes: bytes
    stop_token_ids: tuple[int, ...] = ()
    grammar: GrammarSpec | None = None
    close: ForcedClose | None = None
    grammar_chars: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_bytes) // 4


class LetterDecoder:
    def feed(self, token_ids: tuple[int, ...]) -> str:
        return bytes(token_ids).decode()

    def flush(self) -> None:
        return


@dataclass
class Visitor:
    """One client: what it wants, and every end it saw.

    A slow one stalls before it reads at all and before each batch, while what comes meanwhile
    piles up, in the stream and then before it; `unread_limit` batches are the most.
    """

    text: str
    max_tokens: int | None
    leaves_after: int | None
    stall_turns: int
    unread_limit: int = 1000
    ends: list[str] = field(default_factory=list)

    def check(self, model: str, said: str, num_tokens: int) -> None:
        """A whole answer is the echo of the text, cut where it was to be cut."""
        limit = len(self.text) if self.max_tokens is None else self.max_tokens
        assert said == self.text[: min(limit, num_tokens)]
        assert len(said) > 0

    async def read(self, inbox: asyncio.Queue[list[GenEvent]], context: RequestContext) -> None:
        """Read to the terminal event."""
        said = ""
        while not self.ends:
            await self.stall()
            for event in await inbox.get():
                if isinstance(event, TextDelta):
                    said += event.text
                elif isinstance(event, Finished):
                    self.check(context.outcome["model"], said, event.usage.completion_tokens)
                    self.ends.append(event.reason)
                elif isinstance(event, Failed):
                    self.ends.append(event.error.code)

    async def stall(self) -> None:
        for _ in range(self.stall_turns):
            await asyncio.sleep(0)


class Storm:
    """The listener without its sockets: router, admissions and generator over real handles."""

    def __init__(self, rng: random.Random, executor: ThreadPoolExecutor) -> None:
        self.rng = rng
        self.handles = [
            WorkerHandle(LoadSpec(name=name, path="fake")) for name in ("big", "small", "third")
        ]
        self.workers = [FakeWorker(script) for script in SCRIPTS]
        self.router = Router([h.name for h in self.handles], PrimaryFirst(), QUEUE_LIMIT)
        models = [ServedModel(ModelConfig(path=Path("fake"), name=h.name), h) for h in self.handles]
        self.models = ServedModels(models, self.router)
        self.generator = Generator(Admissions(self.router, self.models, executor, 5.0))
        self.num_crashes = 0

    async def start(self, index: int) -> None:
        await self.handles[index].connect(await asyncio.to_thread(self.workers[index].connect))
        await until(lambda: self.handles[index].state is WorkerState.READY)
        # Only routes read the rest of a text, and there are none here.
        self.models.set_text(self.handles[index].name, Letters())  # type: ignore[arg-type]

    async def crash_and_restart(self) -> None:
        index = self.rng.randrange(len(self.workers))
        if self.handles[index].state is not WorkerState.READY:
            return
        self.num_crashes += 1
        # Whoever comes now is held, so that there is something to lose.
        self.workers[index].script.hold_after = 1
        await asyncio.sleep(0.01)
        self.workers[index].crash()
        await until(lambda: self.handles[index].state is WorkerState.LOST)
        self.workers[index].script.hold_after = None
        await asyncio.sleep(self.rng.random() * 0.02)
        await self.start(index)

    async def visit(self, visitor: Visitor, number: int) -> None:
        call = GenerationCall(
            model=None,
            messages=(ChatMessage("user", visitor.text),),
            max_tokens=visitor.max_tokens,
        )
        context = RequestContext(f"r{number}", f"r{number}")
        try:
            await self.read(visitor, call, context)
        except ApiError as error:
            visitor.ends.append(error.code)
        except SlowClient:
            visitor.ends.append("slow")

    async def read(self, visitor: Visitor, call: GenerationCall, context: RequestContext) -> None:
        inbox: asyncio.Queue[list[GenEvent]] = asyncio.Queue()

        def take(events: list[GenEvent]) -> None:
            if inbox.qsize() >= visitor.unread_limit:
                raise SlowClient("The visitor left too much unread.")
            inbox.put_nowait(events)

        async with self.generator.generate(call, context) as generation:
            await visitor.stall()
            reading = asyncio.create_task(visitor.read(inbox, context))
            try:
                await generation.each(take)
                await reading
            finally:
                reading.cancel()

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.router.tick()

    def in_flight(self) -> int:
        return sum(view.in_flight for view in self.router.views())


def make_visitor(rng: random.Random) -> Visitor:
    return Visitor(
        text="".join(chr(97 + rng.randrange(26)) for _ in range(rng.choice((3, 10, 40, 80, 200)))),
        max_tokens=rng.choice((None, None, 1, 5, 1000)),
        leaves_after=rng.randrange(40) if rng.random() < 0.3 else None,
        stall_turns=rng.randrange(50) if rng.random() < 0.2 else 0,
        unread_limit=rng.choice((1, 4, 1000)),
    )


async def run_visitor(storm: Storm, visitor: Visitor, number: int) -> None:
    """Let a visitor come, and leave before its end if it is one of those."""
    visit = asyncio.create_task(storm.visit(visitor, number))
    if visitor.leaves_after is not None:
        for _ in range(visitor.leaves_after):
            await asyncio.sleep(0)
        visit.cancel()
    try:
        await visit
    except asyncio.CancelledError:
        if not visitor.ends:  # It may have had its answer already.
            visitor.ends.append("left")


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.timeout(300)
async def test_a_storm_leaves_nothing_behind() -> None:
    rng = random.Random(SEED)
    visitors = [make_visitor(rng) for _ in range(NUM_REQUESTS)]
    with ThreadPoolExecutor(2) as executor:
        storm = Storm(rng, executor)
        for index in range(len(SCRIPTS)):
            await storm.start(index)
        tick = asyncio.create_task(storm.tick())
        room = asyncio.Semaphore(ARRIVALS_AT_ONCE)

        async def come(number: int) -> None:
            async with room:
                await run_visitor(storm, visitors[number], number)

        tasks = set()
        for number in range(NUM_REQUESTS):
            tasks.add(asyncio.create_task(come(number)))
            if number % CRASH_EVERY == CRASH_EVERY - 1:
                await storm.crash_and_restart()
            if number % 100 == 99:
                await until(lambda: sum(not task.done() for task in tasks) < 2 * ARRIVALS_AT_ONCE)
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        await until(lambda: storm.in_flight() == 0)
        await assert_nothing_is_left(storm)
        tick.cancel()
        for handle, worker in zip(storm.handles, storm.workers, strict=True):
            handle.shutdown(0)
            await asyncio.to_thread(worker.close)
            await handle.wait_down()
    assert_each_ended_once(storm, visitors)


def is_idle(side: WorkerHandle | FakeWorker) -> bool:
    return side.in_flight == 0


async def assert_nothing_is_left(storm: Storm) -> None:
    router = storm.router
    assert (router.num_waiting, router.num_open, storm.generator.num_running) == (0, 0, 0)
    for handle, worker in zip(storm.handles, storm.workers, strict=True):
        await until(partial(is_idle, handle))
        await until(partial(is_idle, worker))
        # What is left can still be used; a process that came up last has told of nothing yet.
        prompt, sampling = pack_prompt(b"again"), SamplingParams(max_tokens=1)
        await (await handle.submit("again", prompt, sampling)).retired
        await handle.control("check")
        assert handle.stats.free_blocks == handle.stats.total_blocks > 0
    for number in range(3):
        visitor = Visitor("still here", None, None, 0)
        await storm.visit(visitor, -1 - number)
        assert visitor.ends == ["stop"]


def assert_each_ended_once(storm: Storm, visitors: list[Visitor]) -> None:
    assert [len(visitor.ends) for visitor in visitors] == [1] * len(visitors)
    ends = Counter(visitor.ends[0] for visitor in visitors)
    allowed = {"stop", "length", "left", "slow", "overloaded", "worker_lost"}
    allowed.add("context_length_exceeded")
    assert set(ends) <= allowed | {"model_unavailable", "model_loading"}, ends
    if len(visitors) >= 10_000:
        assert storm.num_crashes >= 40
        assert min(ends[end] for end in allowed) > 0, ends
        assert ends["stop"] + ends["length"] > len(visitors) / 4, ends
    for worker, script in zip(storm.workers, SCRIPTS, strict=True):
        assert worker.max_in_flight <= script.max_concurrency
        retired = [message.request_id for message in worker.retired]
        submitted = [m.request_id for m in worker.received if isinstance(m, Submit)]
        assert isinstance(worker.retired[0], Retired)
        assert len(retired) == len(set(retired))
        assert set(retired) <= set(submitted)
