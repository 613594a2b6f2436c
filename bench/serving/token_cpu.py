"""CPU time of listener and worker for each streamed token.

    python -m bench.serving.token_cpu [--model PATH] [--rounds 3] [--only NAME]

Threads' own time from the kernel, so that work beside it adds cold caches and no more. What a
request costs once (tokenising, admission, prefill) is part of it, spread over its tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.serving.load import unique_prompt
from bench.serving.machine import descendants
from bench.serving.router import NUM_STREAMS, PACED, count_streams
from bench.serving.scripted import start_scripted
from bench.serving.servers import Server, demo_model, start_luce

NEW_TOKENS = 256


@dataclass(frozen=True)
class Case:
    """How many streams, in front of what."""

    name: str
    streams: int
    start: Callable[[Path], Server]


def start_real(path: Path) -> Server:
    """The model itself, on two threads."""
    return start_luce(path, "--threads", "2", "--max-concurrency", "4", "--max-ctx", "1024")


CASES = (
    Case("scripted 64", NUM_STREAMS, lambda path: start_scripted(path, PACED)),
    Case("real 1", 1, start_real),
    Case("real 4", 4, start_real),
)


def cpu_us(pid: int) -> float:
    """CPU time of all living threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


async def one_round(server: Server, streams: int, seed: int) -> tuple[float, float]:
    """Microseconds a token of the listener and of all its workers."""
    workers = descendants(server.pid) - {server.pid}
    body = {"max_tokens": NEW_TOKENS, "ignore_eos": True, "temperature": 0}
    prompts = [unique_prompt(8, seed + index) for index in range(streams)]
    before = cpu_us(server.pid), sum(map(cpu_us, workers))
    counters = await count_streams(server.port, [{**body, "messages": p} for p in prompts])
    tokens = sum(len(counter.times_s) for counter in counters)
    listener = cpu_us(server.pid) - before[0]
    return listener / tokens, (sum(map(cpu_us, workers)) - before[1]) / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    args = parser.parse_args()
    table = Table(title="CPU time of a streamed token, best of the rounds, us")
    for column in ("case", "listener", "workers"):
        table.add_column(column, justify="left" if column == "case" else "right")
    for case in CASES:
        if args.only not in case.name:
            continue
        server = case.start(args.model or demo_model())
        try:
            asyncio.run(one_round(server, case.streams, 0))
            rounds = [
                asyncio.run(one_round(server, case.streams, 1000 * (index + 1)))
                for index in range(args.rounds)
            ]
        finally:
            server.stop()
        listener, workers = (min(values) for values in zip(*rounds, strict=True))
        table.add_row(case.name, f"{listener:.1f}", f"{workers:.1f}")
    Console(file=sys.stdout, width=100).print(table)


if __name__ == "__main__":
    main()
