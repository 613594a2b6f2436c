"""A whole listener over real sockets, with scripted workers and a byte tokenizer."""

from __future__ import annotations

import asyncio
import codecs
import json
import socket
import ssl
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest

from luce.config.model import ModelConfig
from luce.errors import TemplateError
from luce.listener.access import Access
from luce.listener.admission import Admissions
from luce.listener.app import Services, build_app
from luce.listener.bind import bind, url_of
from luce.listener.body import BodyLimits
from luce.listener.cors import Cors
from luce.listener.generate import Generator
from luce.listener.http_server import HttpServer
from luce.listener.routes.generation import ClientRules
from luce.listener.served import ServedModel, ServedModels
from luce.protocol.messages import Cancel, LoadSpec, Submit
from luce.protocol.sampling import GrammarSpec, ReasoningBudget
from luce.routing.policy import PrimaryFirst, RoutePolicy
from luce.routing.router import TICK_S, Router
from luce.testing.byte_tokenizer import ByteTokenizer, pack_prompt
from luce.testing.fake_script import FakeScript
from luce.testing.fake_worker import FakeWorker
from luce.testing.slow_reader import SlowReader
from luce.text.budgets import BudgetOptions, resolve_budgets
from luce.text.call import GenerationCall
from luce.text.forced_close import ForcedClose
from luce.text.pipeline import OutputPipeline
from luce.text.thinking import Thinking
from luce.text.vocabulary import TokenVocabulary
from luce.workers.handle import WorkerHandle, WorkerState

CHAT = "/v1/chat/completions"
END = 0
"""The byte that is an end token."""


LOOPS = [
    pytest.param(("asyncio", {"use_uvloop": use_uvloop}), id="uvloop" if use_uvloop else "asyncio")
    for use_uvloop in ([False, True] if find_spec("uvloop") else [False])
]
"""The event loops a server may run on: their sockets end in different ways."""


def chat_body(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A request whose fake answer is an echo of its text."""
    return {"messages": [{"role": "user", "content": text}], **fields}


class ByteDecoder:
    """Detokenizer of bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: tuple[int, ...]) -> str:
        return self._decoder.decode(bytes(i for i in token_ids if i != END))

    def flush(self) -> None:
        self._decoder.reset()


@dataclass(frozen=True)
class BytePrompt:
    prompt_bytes: bytes
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    grammar: GrammarSpec | None = None
    close: ForcedClose | None = None
    grammar_chars: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_bytes) // 4


class ByteVocabulary(ByteTokenizer):
    """What `/tokenize` wants besides: `<end>` is the text of the end token."""

    def encode_with_specials(self, rendered: str) -> list[int]:
        return self.encode(rendered.replace("<end>", chr(END)))

    def token_bytes(self, token_id: int) -> bytes:
        return b"<end>" if token_id == END else bytes([token_id])


@dataclass
class ByteText:
    """The text side of a fake model: the prompt is the messages' bytes, after a prefix."""

    prefix: str = ""
    vocab_size: int = 256
    context_length: int = 8192
    architecture: str = "fake"
    generation_defaults: Mapping[str, float] = field(default_factory=dict)
    num_prepared: int = 0
    tokenizer: ByteVocabulary = field(default_factory=ByteVocabulary)
    add_bos_id: int | None = None
    thinking: Thinking = Thinking(resolve_budgets(BudgetOptions(), None, "fake"))
    weight_types: Mapping[str, int] = field(default_factory=dict)

    def prepare(self, call: GenerationCall, limit: int | None = None) -> BytePrompt:
        self.num_prepared += 1
        text = self.prefix + "".join(message.content or "" for message in call.messages)
        if "refuse me" in text:
            raise TemplateError("the template refuses these messages")
        stop_ids = () if call.sampling.ignore_eos else (END,)
        return BytePrompt(pack_prompt(text.encode()), call.stop, stop_ids)

    def with_grammar(self, prepared: BytePrompt) -> BytePrompt:
        raise AssertionError("these prompts order no grammar")

    def vocabulary(self) -> TokenVocabulary:
        tokens = [self.tokenizer.token_bytes(i) for i in range(self.vocab_size)]
        return TokenVocabulary(tokens, (), (END,))

    def pipeline(
        self,
        prepared: BytePrompt,
        prompt_tokens: int,
        cached_tokens: int = 0,
        budget: ReasoningBudget | None = None,
    ) -> OutputPipeline:
        return OutputPipeline(
            ByteDecoder(),  # type: ignore[arg-type]
            prepared.stop,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
        )


@dataclass
class FakeModel:
    """One model of a harness."""

    name: str
    worker: FakeWorker
    handle: WorkerHandle
    text: ByteText

    def submits(self) -> list[Submit]:
        return [message for message in self.worker.received if isinstance(message, Submit)]

    def cancels(self) -> list[Cancel]:
        return [message for message in self.worker.received if isinstance(message, Cancel)]

    def prompts(self) -> list[str]:
        return [bytes(array("i", s.prompt).tolist()).decode() for s in self.submits()]


@dataclass(kw_only=True)
class Rules:
    """Settings of a harness; short waits, small bodies."""

    queue_limit: int = 8
    queue_timeout_s: float | None = None
    max_body_bytes: int = 100_000
    upload_stall_s: float = 5.0
    upload_total_s: float = 30.0
    keep_alive_interval_s: float = 5.0
    stall_s: float = 5.0
    access: Access = field(default_factory=Access)
    cors: Cors = field(default_factory=Cors)
    tls: ssl.SSLContext | None = None
    clock_s: Callable[[], float] = time.monotonic


class Harness:
    """A listener on a free port. Use as an async context manager."""

    def __init__(
        self,
        *scripts: FakeScript,
        rules: Rules | None = None,
        texts: tuple[ByteText, ...] = (),
        wait_ready: bool = True,
    ) -> None:
        self.rules = rules or Rules()
        self._scripts = scripts or (FakeScript(),)
        self._texts = texts
        self._wait_ready = wait_ready

    async def __aenter__(self) -> Self:
        self.models = [self._fake_model(index) for index in range(len(self._scripts))]
        names = [model.name for model in self.models]
        self.router = Router(
            names, self.policy(names), self.rules.queue_limit, clock_s=self.rules.clock_s
        )
        self.served = ServedModels(
            [
                ServedModel(ModelConfig(path=Path("fake.gguf"), name=model.name), model.handle)
                for model in self.models
            ],
            self.router,
        )
        self._executor = ThreadPoolExecutor(2)
        self.generator = Generator(
            Admissions(self.router, self.served, self._executor, self.rules.queue_timeout_s)
        )
        body = BodyLimits(
            self.rules.max_body_bytes, self.rules.upload_stall_s, self.rules.upload_total_s
        )
        rules = ClientRules(body, self.rules.keep_alive_interval_s, self.rules.stall_s)
        services = Services(
            self.router,
            self.served,
            self.generator,
            rules,
            self._executor,
            1_700_000_000,
            access=self.rules.access,
            cors=self.rules.cors,
        )
        self._sock = self.open_socket()
        if self._sock.family != socket.AF_UNIX:
            self.url = url_of(self._sock)
            self.port: int = self._sock.getsockname()[1]
        self.http = HttpServer(build_app(services), self.rules.tls)
        self._http_task = asyncio.create_task(self.http.serve(sockets=[self._sock]))
        self._tick_task = asyncio.create_task(self._tick())
        for model in self.models:
            await self.connect(model)
        self.client = self.make_client()
        if self._wait_ready:
            await self.ready()
        return self

    def policy(self, names: list[str]) -> RoutePolicy:
        """How requests select models."""
        return PrimaryFirst()

    def open_socket(self) -> socket.socket:
        """Where it listens."""
        return bind("127.0.0.1", 0)

    def make_client(self) -> httpx2.AsyncClient:
        """Who calls."""
        return httpx2.AsyncClient(base_url=self.url, timeout=60)

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        self._tick_task.cancel()
        self.http.cut_connections()
        await self._http_task
        for model in self.models:
            model.handle.shutdown(0)
            await asyncio.to_thread(model.worker.close)
            await model.handle.wait_down()
        self._executor.shutdown()
        self._sock.close()

    async def connect(self, model: FakeModel) -> None:
        """Start a (new) process of a model."""
        await model.handle.connect(await asyncio.to_thread(model.worker.connect))

    async def ready(self) -> None:
        """Wait until every model serves."""
        for model in self.models:
            await eventually(lambda model=model: model.handle.state is WorkerState.READY)  # type: ignore[misc]
            self.served.set_text(model.name, model.text)

    async def ask(self, text: str = "hello", **fields: Any) -> httpx2.Response:
        """One chat request."""
        return await self.client.post(CHAT, json=chat_body(text, **fields))

    async def stream_held_until(self, path: str, body: dict[str, Any], mark: str) -> str:
        """Stream from a model that holds; let it go on when `mark` was there three times."""
        text = ""
        async with self.client.stream("POST", path, json={**body, "stream": True}) as answer:
            async for piece in answer.aiter_text():
                text += piece
                if text.count(mark) >= 3:
                    self.models[0].worker.release()
        return text

    async def running(self, count: int) -> None:
        """Wait until so many requests are in the workers: what was submitted may still travel."""
        await eventually(lambda: self.in_flight() == count)
        await eventually(lambda: sum(len(model.submits()) for model in self.models) >= count)

    async def let_go(self, *asks: Awaitable[Any]) -> list[Any]:
        """Let held requests go on, those as well that only then get a slot; all the answers."""
        answers = asyncio.gather(*asks)
        while not answers.done():
            for model in self.models:
                model.worker.release()
            await asyncio.sleep(0.01)
        return list(await answers)

    def slow_reader(self) -> SlowReader:
        return SlowReader("127.0.0.1", self.port)

    async def idle(self) -> None:
        """Wait until nothing is held anywhere; fails if that never happens."""
        await eventually(lambda: self.in_flight() == 0)
        alive = [m for m in self.models if m.handle.state is WorkerState.READY]
        await eventually(lambda: all(model.worker.in_flight == 0 for model in alive))
        await eventually(lambda: self.router.num_waiting == self.router.num_open == 0)
        await eventually(lambda: self.generator.num_running == 0)
        # The blocks are told in a message of their own, which may come after the last token.
        await eventually(lambda: all(blocks_are_free(model.handle) for model in alive))

    def in_flight(self) -> int:
        return sum(view.in_flight for view in self.router.views())

    def _fake_model(self, index: int) -> FakeModel:
        name = ("big", "small", "third")[index]
        text = self._texts[index] if index < len(self._texts) else ByteText()
        handle = WorkerHandle(LoadSpec(name=name, path="fake.gguf"))
        return FakeModel(name, FakeWorker(self._scripts[index]), handle, text)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.router.tick()


def blocks_are_free(handle: WorkerHandle) -> bool:
    """Whether the worker last told of no block in use."""
    return handle.stats.free_blocks == handle.stats.total_blocks


@asynccontextmanager
async def connected(
    place: int | Path, **options: Any
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection by hand, to a port or a socket's path; it is gone when the block is left."""
    if isinstance(place, Path):
        reader, writer = await asyncio.open_unix_connection(place, **options)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", place, **options)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):  # The server may have been the first to end it.
            await writer.wait_closed()


async def eventually(condition: Any, timeout_s: float = 60) -> None:
    """Wait for something that should become true soon."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def events_of(text: str) -> list[Any]:
    """Data of a finished event stream; `[DONE]` stays a string. Comments are left out."""
    events: list[Any] = []
    for block in (part.strip("\n") for part in text.split("\n\n")):
        if block and not block.startswith(":"):
            assert block.startswith("data: "), block
            data = block.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
    return events


def text_of(events: list[Any]) -> str:
    """The content of a chat stream."""
    deltas = [e["choices"][0]["delta"] for e in events if e != "[DONE]" and e.get("choices")]
    return "".join(delta.get("content", "") for delta in deltas)
