"""Sixteen requests that share a 2,000-token system prompt, with and without the prefix cache.

python -m bench.serving.prefix [--model PATH] [--repeats 3]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.serving.load import sample, unique_prompt
from bench.serving.servers import demo_model, start_luce


def _bodies(system: str) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": f"Question {i}: what is {i} plus {i}?"},
            ],
            "max_tokens": 16,
            "temperature": 0,
            "ignore_eos": True,
        }
        for i in range(16)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    model = args.model or demo_model()
    options = ["--max-concurrency", "16", "--max-ctx", "4096", "--kv-pool-tokens", "40960"]
    cached = start_luce(model, *options)
    plain = start_luce(model, *options, "--no-prefix-cache")
    walls: dict[str, list[float]] = {"cached": [], "plain": []}
    try:
        for repeat in range(args.repeats):
            system = unique_prompt(1970, random.Random(repeat).randrange(10**6))[1]["content"]
            for name, server in (("cached", cached), ("plain", plain)):
                walls[name].append(asyncio.run(sample(server.port, _bodies(system))).wall_s)
    finally:
        cached.stop()
        plain.stop()
    with_cache, without = (statistics.median(walls[name]) for name in ("cached", "plain"))
    table = Table(title="16 requests, one 2,000-token system prompt")
    for column in ("prefix cache on", "off", "ratio", "limit"):
        table.add_column(column, justify="right")
    table.add_row(f"{with_cache:.2f} s", f"{without:.2f} s", f"{with_cache / without:.2f}", "0.30")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
