"""What routing and HTTP cost, with scripted workers that cost next to nothing.

python -m bench.serving.router [--model PATH] [--rounds N] [--only FIGURE...]

The load comes from this process, the listener and its workers are others. Each figure is
measured `rounds` times; the table shows the median and the worst of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.serving.load import Sample, Stream, unique_prompt
from bench.serving.machine import ForeignCpu
from bench.serving.scripted import start_scripted
from bench.serving.servers import demo_model, health
from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.model import ModelConfig
from luce.listener.bind import bind
from luce.listener.entrance import Entrance
from luce.listener.placing import machine_for, place_models
from luce.listener.residency import Placement
from luce.listener.server import ListenerProcess, loop_factory
from luce.protocol.messages import LoadSpec
from luce.protocol.sampling import SamplingParams
from luce.testing.byte_tokenizer import pack_prompt
from luce.testing.fake_script import FakeScript
from luce.testing.scripted_launcher import ScriptedLauncher
from luce.testing.stream_reader import batches
from luce.text.bundle import TextBundle
from luce.text.call import ChatMessage, GenerationCall
from luce.workers.handle import WorkerHandle
from luce.workers.supervisor import Supervisor

VOCAB = 49152
QUICK = FakeScript(vocab_size=VOCAB, reply=[504], max_concurrency=64)
"""Answers with one token at once."""

NUM_STREAMS, STREAM_TOKENS, TOKEN_PAUSE_S = 64, 500, 0.002
PACED = FakeScript(
    vocab_size=VOCAB,
    reply=[504] * STREAM_TOKENS,
    max_concurrency=NUM_STREAMS,
    kv_pool_tokens=2**18,
    token_delay_s=TOKEN_PAUSE_S,
)
"""64 streams at up to 32,000 tokens a second: more than is asked for, so that it is no limit."""

REFUSING = msgspec.structs.replace(QUICK, refuse_next=10**9)
REAL_CTX, REAL_TOKENS, REAL_TURNS = 1024, 64, 4

Round = Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Attributes:
        limit: what it has to reach.
        at_most: whether the limit is an upper one.
    """

    name: str
    unit: str
    limit: float
    at_most: bool
    values: list[float]

    @property
    def worst(self) -> float:
        return max(self.values) if self.at_most else min(self.values)

    @property
    def holds(self) -> bool:
        median = statistics.median(self.values)
        return median <= self.limit if self.at_most else median >= self.limit


class Connection:
    """A kept-alive connection that sends one request over and over."""

    def __init__(self, port: int, **fields: Any) -> None:
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
        payload = json.dumps({**body, **fields}).encode()
        self._port = port
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(payload)
        ) + payload
        self._end = b"data: [DONE]\n\n" if fields.get("stream") else b""

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self) -> tuple[float, float]:
        """Send it; seconds to the first byte and to the last."""
        started = time.perf_counter()
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        first = time.perf_counter() - started
        if b" 200 " not in head[:16]:
            raise RuntimeError(f"{head!r}")
        if b"content-length: " in head:
            size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            await self._reader.readexactly(size)
        else:
            await self._reader.readuntil(b"0\r\n\r\n")
        return first, time.perf_counter() - started


async def direct_p50_ms(num_requests: int) -> float:
    """Milliseconds of one request to a scripted worker, from Submit to Retired."""
    launcher = ScriptedLauncher({"direct": QUICK})
    supervisor = Supervisor(LoadSpec(name="direct", path=""), launcher)
    supervisor.start()
    times = []
    try:
        await supervisor.wait_first_load()
        for index in range(num_requests):
            started = time.perf_counter()
            stream = await supervisor.handle.submit(
                f"r{index}", pack_prompt(range(5, 40)), SamplingParams(max_tokens=1)
            )
            await stream.retired
            times.append(time.perf_counter() - started)
    finally:
        await supervisor.stop(0)
    return statistics.median(times) * 1e3


async def http_p50_ms(port: int, num_requests: int, **fields: Any) -> tuple[float, float]:
    """Median milliseconds to the first and to the last byte, one request at a time."""
    async with Connection(port, **fields) as connection:
        for _ in range(20):
            await connection.ask()
        times = [await connection.ask() for _ in range(num_requests)]
    first, last = zip(*times, strict=True)
    return statistics.median(first) * 1e3, statistics.median(last) * 1e3


async def requests_per_s(port: int, concurrency: int, seconds: float) -> float:
    """Requests answered a second, each connection sending the next one at once."""
    done = 0
    until = time.perf_counter() + seconds

    async def client() -> None:
        nonlocal done
        async with Connection(port) as connection:
            while time.perf_counter() < until:
                await connection.ask()
                done += 1

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return done / (time.perf_counter() - started)


class StreamCounter(asyncio.Protocol):
    """Reads one stream and counts its chunks without looking into them.

    Parsing them would cost more than the server does, on the cores it is to have.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        payload = json.dumps({**body, "stream": True}).encode()
        self.times_s: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n"
            % len(payload)
        ) + payload
        self._tail = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        seen = self._tail + data
        self.times_s += [time.monotonic()] * seen.count(b'"content":')
        self._tail = seen[-9:]
        if b"[DONE]" in seen:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def count_streams(port: int, bodies: list[dict[str, Any]]) -> list[StreamCounter]:
    """Stream all of them at once; returns when the last one has ended."""
    loop = asyncio.get_running_loop()
    counters = [StreamCounter(body) for body in bodies]
    for counter in counters:
        await loop.create_connection(lambda c=counter: c, "127.0.0.1", port)  # type: ignore[misc]
    await asyncio.gather(*(counter.done for counter in counters))
    return counters


async def streamed_tokens_per_s(port: int) -> float:
    """Tokens a second over all streams, from the first of any to the last of all."""
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    counters = await count_streams(port, [body] * NUM_STREAMS)
    received = sum(len(counter.times_s) for counter in counters)
    if received != NUM_STREAMS * STREAM_TOKENS:
        raise RuntimeError(f"{received} tokens instead of {NUM_STREAMS * STREAM_TOKENS}")
    started = min(counter.times_s[0] for counter in counters)
    return received / (max(counter.times_s[-1] for counter in counters) - started)


async def real_ratio(port: int, handle: WorkerHandle, text: TextBundle, num_streams: int) -> float:
    """Decoded tokens per second through HTTP as a share of what the same worker gives alone.

    The two take turns and the best of each counts: what else the machine does only slows down.
    """
    rates: dict[str, list[float]] = {"http": [], "direct": []}
    for turn in range(2 * REAL_TURNS):
        prompts = [unique_prompt(32, turn * 100 + index) for index in range(num_streams)]
        if turn % 2:
            body = {"max_tokens": REAL_TOKENS, "ignore_eos": True, "temperature": 0}
            counters = await count_streams(port, [{**body, "messages": p} for p in prompts])
            streams = [Stream(token_times=counter.times_s) for counter in counters]
            rates["http"].append(Sample(streams, 0.0).decode_rate)
        else:
            streams = await asyncio.gather(*(direct(handle, text, prompt) for prompt in prompts))
            rates["direct"].append(Sample(streams, 0.0).decode_rate)
    return max(rates["http"]) / max(rates["direct"])


async def direct(handle: WorkerHandle, text: TextBundle, prompt: list[dict[str, str]]) -> Stream:
    """The same request, given to the worker by hand."""
    messages = tuple(ChatMessage(message["role"], message["content"], {}) for message in prompt)
    prepared = text.prepare(GenerationCall(model=None, messages=messages))
    sampling = SamplingParams(max_tokens=REAL_TOKENS)
    result = Stream(time.monotonic())
    stream = await handle.submit(str(time.perf_counter_ns()), prepared.prompt_bytes, sampling)
    async for batch in batches(stream):
        result.token_times += [time.monotonic()] * sum(len(delta.token_ids) for delta in batch)
    await stream.retired
    return result


def wait_serving(port: int, timeout_s: float = 60) -> None:
    until = time.monotonic() + timeout_s
    while health(port) != 200:
        if time.monotonic() > until:
            raise RuntimeError("the model did not load")
        time.sleep(0.05)


# --- the figures ---------------------------------------------------------------------------


def measure(rounds: int, one: Round) -> list[float]:
    return [asyncio.run(_awaited(one)) for _ in range(rounds)]


async def _awaited(one: Round) -> float:
    return await one()


def latency(path: Path, rounds: int) -> Figure:
    server = start_scripted(path, QUICK)

    async def one() -> float:
        _, total_ms = await http_p50_ms(server.port, 300)
        return total_ms - await direct_p50_ms(300)

    try:
        return Figure("added to a request, concurrency 1", "ms", 2.0, True, measure(rounds, one))
    finally:
        server.stop()


def throughput(path: Path, rounds: int) -> Figure:
    server = start_scripted(path, QUICK)
    try:
        values = measure(rounds, lambda: requests_per_s(server.port, 32, 4.0))
        return Figure("requests, concurrency 32", "1/s", 800, False, values)
    finally:
        server.stop()


def streams(path: Path, rounds: int) -> Figure:
    server = start_scripted(path, PACED)
    try:
        values = measure(rounds, lambda: streamed_tokens_per_s(server.port))
        return Figure("tokens, 64 streams", "1/s", 10_000, False, values)
    finally:
        server.stop()


def fallback(path: Path, rounds: int) -> Figure:
    with_room, without = start_scripted(path, QUICK, QUICK), start_scripted(path, REFUSING, QUICK)

    async def one() -> float:
        plain_ms, _ = await http_p50_ms(with_room.port, 300, stream=True)
        fallen_ms, _ = await http_p50_ms(without.port, 300, stream=True)
        return fallen_ms - plain_ms

    try:
        return Figure("fallback, to the first byte", "ms", 2.0, True, measure(rounds, one))
    finally:
        with_room.stop()
        without.stop()


def real(path: Path, rounds: int) -> list[Figure]:
    """The listener runs in this process, so that both ways lead to the same worker."""
    model = ModelConfig(path=path, name="real", max_ctx=REAL_CTX, prefix_cache=False)
    config = ServerConfig(listener=ListenerConfig(port=0), models=(model,))
    text = TextBundle.load(path)
    values: dict[int, list[float]] = {1: [], 4: []}

    async def use() -> None:
        sock = bind("127.0.0.1", 0)
        machine = machine_for(config.routing, config.models)
        placement = Placement(place_models(config, machine), machine)
        listener = ListenerProcess(config, placement, Entrance(sock))
        serving = asyncio.create_task(listener.run())
        handle, port = listener.supervisors[0].handle, sock.getsockname()[1]
        try:
            await asyncio.to_thread(wait_serving, port)
            for _ in range(rounds):
                for num_streams, ratios in values.items():
                    ratios.append(await real_ratio(port, handle, text, num_streams))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await serving

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(use())
    return [
        Figure(f"one real model behind it, {n} stream{'s' * (n > 1)}", "x", 0.98, False, ratios)
        for n, ratios in values.items()
    ]


FIGURES: dict[str, Callable[[Path, int], Figure | list[Figure]]] = {
    "latency": latency,
    "throughput": throughput,
    "streams": streams,
    "fallback": fallback,
    "real": real,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(FIGURES), default=list(FIGURES))
    args = parser.parse_args()
    path = args.model or demo_model()
    table = Table(title="router and HTTP")
    for column in ("figure", "unit", "median", "worst", "limit", "holds", "others' CPU"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    all_hold = True
    for name in args.only:
        foreign = ForeignCpu.start([os.getpid()])
        measured = FIGURES[name](path, args.rounds)
        share = foreign.share()
        for figure in measured if isinstance(measured, list) else [measured]:
            all_hold &= figure.holds
            table.add_row(
                figure.name,
                figure.unit,
                f"{statistics.median(figure.values):.4g}",
                f"{figure.worst:.4g}",
                f"{'<=' if figure.at_most else '>='} {figure.limit:g}",
                "yes" if figure.holds else "NO",
                f"{share:.0%}",
            )
    Console(file=sys.stdout, width=110).print(table)
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
