"""luce against llama.cpp on this CPU, interleaved, same requests, same client.

    python -m bench.serving.compare [--model PATH] [--threads 2] [--repeats 5] [--only NAME]

Each repetition measures A then B; a repetition in which other processes used more than 5 % of
the machine is thrown away and done again. The figure is the median of the ratios. Beside a busy
core the process that keeps it busy is ours, and counts as such.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from bench.serving.load import Sample, Stream, sample, stream_chat, unique_prompt
from bench.serving.machine import ForeignCpu
from bench.serving.servers import Server, demo_model, start_llamacpp, start_luce

MAX_FOREIGN = 0.05
HOST = "127.0.0.1"
NUM_PROBES, PROBE_WORDS = 6, 1
"""One word, a number and the template make some 20 tokens."""
DECODER_TOKENS = 1500
"""More than those that are beside a probe give before the last probe has ended."""
COLUMNS = ("case", "unit", "luce", "llama.cpp", "ratio", "floor / aim", "pairs", "discarded")
_ids = itertools.count(100_000)


class Case(Protocol):
    """One row.

    Attributes:
        unit: of what is measured.
        floor: the ratio that has to be reached; aim: that should be.
        lower_is_better: then the ratio has to stay below.
    """

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def floor(self) -> float: ...
    @property
    def aim(self) -> float: ...
    @property
    def lower_is_better(self) -> bool: ...

    def value(self, port: int) -> float:
        """Measure one server once."""

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        """What goes on meanwhile."""


@dataclass(frozen=True)
class Rate:
    """Tokens a second of simultaneous streams."""

    name: str
    streams: int
    prompt_words: int
    new_tokens: int
    floor: float
    aim: float
    prefill: bool = False
    beside_a_busy_core: bool = False
    unit: str = "tokens/s"
    lower_is_better: bool = False

    def value(self, port: int) -> float:
        bodies = [_body(self.prompt_words, self.new_tokens) for _ in range(self.streams)]
        result: Sample = asyncio.run(sample(port, bodies))
        return result.prefill_rate if self.prefill else result.decode_rate

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        return busy_core() if self.beside_a_busy_core else contextlib.nullcontext()


@dataclass(frozen=True)
class FirstToken:
    """How long a short chat waits for its first token while others decode."""

    name: str
    others: int
    floor: float
    aim: float
    unit: str = "ms"
    lower_is_better: bool = True

    def value(self, port: int) -> float:
        return asyncio.run(self._median_ms(port))

    def surroundings(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    async def _median_ms(self, port: int) -> float:
        seen = [Stream() for _ in range(self.others)]
        others = [
            asyncio.create_task(stream_chat(HOST, port, _body(4, DECODER_TOKENS), each))
            for each in seen
        ]
        try:
            while not all(len(each.token_times) > 1 for each in seen):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            probes = []
            for _ in range(NUM_PROBES):
                # Not at once: the end of one must not be the beginning of the next.
                await asyncio.sleep(0.05)
                probes.append(await stream_chat(HOST, port, _body(PROBE_WORDS, 2)))
            if any(task.done() for task in others):
                raise RuntimeError("a stream beside the probes ended before them")
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.5)  # Until the server has noticed.
        return statistics.median(probe.ttft_s for probe in probes) * 1e3


def _body(prompt_words: int, new_tokens: int) -> dict[str, Any]:
    return {
        "messages": unique_prompt(prompt_words, next(_ids)),
        "max_tokens": new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """Another process that computes on one core all the time."""
    core = max(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", spin])
    try:
        yield
    finally:
        process.kill()
        process.wait()


CASES: tuple[Case, ...] = (
    Rate("decode 1", 1, 4, 48, 1.1, 1.5),
    Rate("decode 4", 4, 4, 32, 1.3, 1.8),
    Rate("decode 8", 8, 4, 32, 1.4, 2.0),
    Rate("decode 16", 16, 4, 32, 1.7, 2.4),
    Rate("prefill 512", 1, 490, 2, 2.0, 3.0, prefill=True),
    Rate("prefill 2000", 1, 1970, 2, 2.0, 3.0, prefill=True),
    Rate("busy 1", 1, 4, 48, 1.8, 2.5, beside_a_busy_core=True),
    FirstToken("ttft beside 8", 8, 1.0, 0.6),
)


@dataclass
class Row:
    """Clean samples of one case."""

    luce: list[float]
    peer: list[float]
    discarded: int = 0

    @property
    def ratio(self) -> float:
        pairs = zip(self.luce, self.peer, strict=True)
        return statistics.median(a / b for a, b in pairs)

    def cells(self, case: Case) -> list[str]:
        limits = f"{'<=' if case.lower_is_better else '>='} {case.floor} / {case.aim}"
        if not self.luce:
            return [case.name, case.unit, "-", "-", "-", limits, "0", str(self.discarded)]
        return [
            case.name,
            case.unit,
            f"{statistics.median(self.luce):.1f}",
            f"{statistics.median(self.peer):.1f}",
            f"{self.ratio:.2f}",
            limits,
            str(len(self.luce)),
            str(self.discarded),
        ]


@dataclass(frozen=True)
class Rules:
    """How many pairs are wanted, how many may be thrown away, and which are."""

    repeats: int
    patience: int
    max_foreign: float


def measure(case: Case, luce: Server, peer: Server, rules: Rules) -> Row:
    """Interleaved clean pairs of one case."""
    row = Row([], [])
    for server in (luce, peer):
        case.value(server.port)
    with case.surroundings():
        while len(row.luce) < rules.repeats and row.discarded < rules.patience:
            watch = ForeignCpu.start([luce.pid, peer.pid, os.getpid()])
            ours, theirs = case.value(luce.port), case.value(peer.port)
            if watch.share() > rules.max_foreign:
                row.discarded += 1
                continue
            row.luce.append(ours)
            row.peer.append(theirs)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patience", type=int, default=10, help="samples to discard at most")
    parser.add_argument(
        "--max-foreign", type=float, default=MAX_FOREIGN, help="share of the machine, 0 to 1"
    )
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    args = parser.parse_args()
    model = args.model or demo_model()
    options = ["--max-concurrency", "16", "--max-ctx", "4096", "--kv-pool-tokens", "16384"]
    luce = start_luce(model, "--threads", str(args.threads), *options)
    peer = start_llamacpp(model, 16, 16384, args.threads)
    rules = Rules(args.repeats, args.patience, args.max_foreign)
    table = Table(title=f"{model.name}, {args.threads} threads, medians")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "case" else "right")
    try:
        for case in CASES:
            if args.only in case.name:
                row = measure(case, luce, peer, rules)
                table.add_row(*row.cells(case))
    finally:
        luce.stop()
        peer.stop()
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
