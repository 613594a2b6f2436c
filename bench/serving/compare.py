"""luce against llama.cpp on this CPU, interleaved, same requests, same client.

    python -m bench.serving.compare [--model PATH] [--threads 2] [--repeats 5]

Each repetition measures A then B; a repetition in which other processes used more than 5 % of
the machine is thrown away and done again. The figure is the median of the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.serving.load import Sample, sample, unique_prompt
from bench.serving.machine import ForeignCpu
from bench.serving.servers import Server, demo_model, start_llamacpp, start_luce

MAX_FOREIGN = 0.05
_ids = itertools.count(100_000)


@dataclass(frozen=True)
class Case:
    """One row: how many streams, how long the prompts, how many tokens, and the floor."""

    name: str
    streams: int
    prompt_words: int
    new_tokens: int
    floor: float
    prefill: bool = False

    def bodies(self) -> list[dict[str, Any]]:
        return [
            {
                "messages": unique_prompt(self.prompt_words, next(_ids)),
                "max_tokens": self.new_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
            for _ in range(self.streams)
        ]

    def rate(self, result: Sample) -> float:
        return result.prefill_rate if self.prefill else result.decode_rate


CASES = (
    Case("decode 1", 1, 4, 48, 0.33),
    Case("decode 4", 4, 4, 32, 0.45),
    Case("decode 8", 8, 4, 32, 0.8),
    Case("decode 16", 16, 4, 32, 1.2),
    Case("prefill 512", 1, 490, 2, 1.7, prefill=True),
    Case("prefill 2000", 1, 1970, 2, 1.5, prefill=True),
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


def measure(case: Case, luce: Server, peer: Server, repeats: int, patience: int) -> Row:
    """Interleaved clean pairs of one case."""
    row = Row([], [])
    for server in (luce, peer):
        asyncio.run(sample(server.port, case.bodies()))
    while len(row.luce) < repeats and row.discarded < patience:
        watch = ForeignCpu.start([luce.pid, peer.pid, os.getpid()])
        ours = case.rate(asyncio.run(sample(luce.port, case.bodies())))
        theirs = case.rate(asyncio.run(sample(peer.port, case.bodies())))
        if watch.share() > MAX_FOREIGN:
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
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    args = parser.parse_args()
    model = args.model or demo_model()
    options = ["--max-concurrency", "16", "--max-ctx", "4096", "--kv-pool-tokens", "16384"]
    luce = start_luce(model, "--threads", str(args.threads), *options)
    peer = start_llamacpp(model, 16, 16384, args.threads)
    table = Table(title=f"{model.name}, {args.threads} threads, medians, tokens/s")
    for column in ("case", "luce", "llama.cpp", "ratio", "floor", "pairs", "discarded"):
        table.add_column(column, justify="left" if column == "case" else "right")
    try:
        for case in CASES:
            if args.only not in case.name:
                continue
            row = measure(case, luce, peer, args.repeats, args.patience)
            if not row.luce:
                table.add_row(case.name, "-", "-", "-", f"{case.floor}", "0", str(row.discarded))
                continue
            table.add_row(
                case.name,
                f"{statistics.median(row.luce):.1f}",
                f"{statistics.median(row.peer):.1f}",
                f"{row.ratio:.2f}",
                f"{case.floor}",
                str(len(row.luce)),
                str(row.discarded),
            )
    finally:
        luce.stop()
        peer.stop()
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
