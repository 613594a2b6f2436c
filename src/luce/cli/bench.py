"""`luce bench`: how fast models prefill and decode on this machine, engine and scheduler alone.

No processes, no HTTP, no text: made-up token ids, prefix cache off, every sequence greedy. The
figures are medians, so that one disturbed run does not count.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from rich.table import Table

from luce.cli.rich_output import print_rich
from luce.cli.tools import BenchArguments
from luce.errors import InternalError
from luce.protocol.messages import LoadSpec
from luce.protocol.sampling import SamplingParams
from luce.scheduler.outcome import Admitted, SequenceDelta
from luce.units import format_bytes
from luce.worker.load import LoadedModel, load_model

PREFILL_TOKENS = (512, 2000)
STREAMS = (1, 4, 8, 16)
REPEATS = 3
DECODE_TOKENS = 48
"""Tokens each stream generates."""
_DECODE_PROMPT_TOKENS = 16
_KV_POOL_TOKENS = 4096
_PRIME_STEP = 7919
"""Steps through the vocabulary: prompts differ, and hardly repeat a token."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One model's speed.

    Attributes:
        load_s: from the call to a warm engine.
        prefill: prompt length → prompt tokens per second; None where the context is too short.
        decode: number of streams → tokens per second of all streams together.
    """

    name: str
    device: str
    dtype: str
    weights_bytes: int
    load_s: float
    prefill: dict[int, float | None]
    decode: dict[int, float | None]


def bench(arguments: BenchArguments) -> int:
    """Measure each model in turn and print one table. Returns the exit code.

    Raises:
        StartupError: a model cannot be loaded.
    """
    figures = [measure(path, arguments) for path in arguments.paths]
    threads = arguments.threads or len(os.sched_getaffinity(0))
    print_rich(table_of(figures, f"tokens per second, {threads} CPU threads"))
    return 0


def measure(path: Path, arguments: BenchArguments) -> Figures:
    """Load one model, measure it, and give its memory back."""
    spec = LoadSpec(
        name=path.name,
        path=str(path),
        device=arguments.device,
        dtype=arguments.dtype,
        threads=arguments.threads,
        max_concurrency=max(STREAMS),
        kv_pool_tokens=_KV_POOL_TOKENS,
        prefix_cache=False,
    )
    begin = time.perf_counter()
    model = load_model(spec, _no_progress)
    load_s = time.perf_counter() - begin
    try:
        run = EngineRun(model)
        return Figures(
            name=path.name,
            device=model.ready.device,
            dtype=model.ready.dtype,
            weights_bytes=model.ready.weights_bytes,
            load_s=load_s,
            prefill={length: run.prefill_rate(length) for length in PREFILL_TOKENS},
            decode={streams: run.decode_rate(streams) for streams in STREAMS},
        )
    finally:
        model.engine.close()


class EngineRun:
    """Drives a loaded model step by step, one step at a time."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._ids = count()

    def prefill_rate(self, length: int) -> float | None:
        """Prompt tokens per second of one prompt; None if the context is too short."""
        if length + 1 > self._model.scheduler.max_seq_tokens:
            return None
        rates = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            self._submit(length, 1)
            self._run_out()
            rates.append(length / (time.perf_counter() - begin))
        return statistics.median(rates)

    def decode_rate(self, streams: int) -> float | None:
        """Tokens per second of so many streams together, measured after their prompts."""
        if self._model.scheduler.max_seq_tokens < _DECODE_PROMPT_TOKENS + DECODE_TOKENS:
            return None
        rates = []
        for _ in range(REPEATS):
            for _ in range(streams):
                self._submit(_DECODE_PROMPT_TOKENS, DECODE_TOKENS)
            started: set[str] = set()
            while len(started) < streams:
                started.update(delta.request_id for delta in self._step())
            begin = time.perf_counter()
            tokens = self._run_out()
            rates.append(tokens / (time.perf_counter() - begin))
        return statistics.median(rates)

    def _submit(self, num_prompt_tokens: int, num_tokens: int) -> None:
        number = next(self._ids)
        prompt = tuple(self._token_ids(number, num_prompt_tokens))
        result = self._model.scheduler.submit(
            f"bench-{number}", prompt, SamplingParams(max_tokens=num_tokens)
        )
        if not isinstance(result, Admitted):
            raise InternalError(f"the scheduler did not admit a prompt that fits: {result}")

    def _token_ids(self, number: int, length: int) -> Iterator[int]:
        vocab_size = self._model.ready.vocab_size
        return ((number + index) * _PRIME_STEP % vocab_size for index in range(length))

    def _run_out(self) -> int:
        """Step until nothing is left; returns the tokens sampled meanwhile."""
        tokens = 0
        while self._model.scheduler.has_work:
            tokens += sum(len(delta.token_ids) for delta in self._step())
        return tokens

    def _step(self) -> tuple[SequenceDelta, ...]:
        plan = self._model.scheduler.plan()
        if plan is None:
            raise InternalError("the scheduler has work and no plan")
        result = self._model.engine.step(plan).result()
        outcome = self._model.scheduler.apply(plan, result)
        self._model.scheduler.take_retired()
        return outcome.deltas


def table_of(figures: list[Figures], title: str) -> Table:
    """The figures as a table for people, one column a model."""
    table = Table("", title=title)
    for entry in figures:
        table.add_column(entry.name, justify="right", overflow="fold")
    rows: dict[str, list[str]] = {}
    for entry in figures:
        for head, cell in _cells(entry):
            rows.setdefault(head, []).append(cell)
    for head, cells in rows.items():
        table.add_row(head, *cells)
    return table


def _cells(entry: Figures) -> Iterator[tuple[str, str]]:
    yield "device", entry.device
    yield "type", entry.dtype
    yield "weights", format_bytes(entry.weights_bytes)
    yield "load", f"{entry.load_s:.1f} s"
    for length, rate in entry.prefill.items():
        yield f"prefill {length}", _rate(rate)
    for streams, rate in entry.decode.items():
        yield f"decode x{streams}", _rate(rate)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1f}"


def _no_progress(_stage: str, _done_bytes: int, _total_bytes: int) -> None:
    """Loading reports to nobody here."""
