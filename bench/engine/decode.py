"""Decode and prefill rates of the engine alone, with plans made by hand, and where time goes.

    python bench/engine/decode.py MODEL [--threads N] [--context N] [--cache-type TYPE] [--profile]

Other work on the machine spoils the figures: every case is run several times and the best is
printed beside the median.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from luce.engine.engine import Engine
from luce.engine.options import EngineOptions
from luce.kv.spec import blocks_for
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan

ROWS = (1, 4, 8, 16)
PREFILLS = (512, 2000)
CHUNK = 512
GREEDY = SamplingParams(max_tokens=1 << 20)


class Bench:
    """Fixed plans on one engine; every case begins with fresh prompts on fresh blocks."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._step = 0
        self._token = 0

    def _prompt(self, count: int) -> tuple[int, ...]:
        self._token += 7919
        limit = self.engine.resolved.vocab_size
        return tuple((self._token + 31 * index) % limit for index in range(count))

    def _run(self, starts: tuple[RowStart, ...], items: tuple[ScheduledSequence, ...]) -> float:
        self._step += 1
        began = time.perf_counter()
        self.engine.step(StepPlan(self._step, starts, items)).result()
        return time.perf_counter() - began

    def _table(self, row: int, tokens: int) -> tuple[int, ...]:
        count = blocks_for(self.engine.resolved.max_ctx, self.engine.resolved.block_tokens)
        first = 1 + row * count
        return tuple(range(first, first + blocks_for(tokens, self.engine.resolved.block_tokens)))

    def decode(self, rows: int, context: int, steps: int) -> list[float]:
        """Seconds of each decode step of `rows` sequences that hold `context` tokens."""
        for row in range(rows):
            prompt = self._prompt(context)
            start = RowStart(row, GREEDY, 0, prompt, context)
            table = self._table(row, context)
            self._run((start,), (ScheduledSequence(row, 0, prompt, table, sample=True),))
        return [
            self._run(
                (),
                tuple(
                    ScheduledSequence(
                        row,
                        context + step,
                        (),
                        self._table(row, context + step + 1),
                        sample=True,
                        output_index=1 + step,
                    )
                    for row in range(rows)
                ),
            )
            for step in range(steps)
        ]

    def prefill(self, tokens: int) -> float:
        """Seconds to compute a prompt in chunks, first token included."""
        prompt = self._prompt(tokens)
        starts: tuple[RowStart, ...] = (RowStart(0, GREEDY, 0, prompt, tokens),)
        total = 0.0
        for first in range(0, tokens, CHUNK):
            stop = min(first + CHUNK, tokens)
            table = self._table(0, stop)
            item = ScheduledSequence(0, first, prompt[first:stop], table, sample=stop == tokens)
            total += self._run(starts, (item,))
            starts = ()
        return total


def report(name: str, rates: list[float]) -> None:
    best, median = max(rates), statistics.median(rates)
    print(f"{name:<28} {best:8.1f} {median:8.1f}  tok/s (best, median)")


def profile(name: str, work: Callable[[], object]) -> None:
    """Time inside PyTorch's operators by kind."""
    # Not at the top: the engine's settings must stand before PyTorch is imported.
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        work()
    print(f"\n{name}")
    print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=14))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument(
        "--cache-type", default="auto", help="of keys and values: f16, bf16, q8_0, q4_0"
    )
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    engine = Engine.load(
        EngineOptions(
            path=options.model,
            threads=options.threads,
            max_concurrency=16,
            max_ctx=max(4096, options.context + 64),
            cache_type_k=options.cache_type,
            cache_type_v=options.cache_type,
        ),
        lambda *_: None,
    )
    loaded = time.perf_counter()
    engine.warm_up()
    print(f"load {loaded - began:.1f} s, warm-up {time.perf_counter() - loaded:.1f} s")
    print(f"kernels {' '.join(engine.resolved.kernels)}")
    bench = Bench(engine)
    for rows in ROWS:
        steps = [
            second
            for _ in range(options.repeat)
            for second in bench.decode(rows, options.context, 24)
        ]
        report(f"decode {rows} rows, {options.context} context", [rows / each for each in steps])
    for tokens in PREFILLS:
        seconds = [bench.prefill(tokens) for _ in range(options.repeat)]
        report(f"prefill {tokens}", [tokens / each for each in seconds])
    if options.profile:
        for rows in (1, 16):
            profile(f"decode {rows}", functools.partial(bench.decode, rows, 32, 24))
        profile("prefill 512", lambda: bench.prefill(512))


if __name__ == "__main__":
    main()
