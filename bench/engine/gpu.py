"""Speed of the engine on a GPU, random weights of the right shapes: checks, times, table last.

    PYTHONPATH=src:. python -m bench.engine.gpu [--cases 8B,8B:FP8,8B:Q4_K,8B:bf16:q8_0] [--profile]

Shares are of ceilings measured in the same run: a copy between two large buffers (bytes read and
written) and a large bfloat16 product on random data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench.engine.shapes import QWEN3, Storage, random_engine

from luce.engine.device import open_device
from luce.engine.engine import Engine, PendingStep
from luce.kv.spec import blocks_for, head_bytes
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan

GREEDY = SamplingParams(max_tokens=1 << 20)


def timed(work: Callable[[], object], repeat: int = 10, warm: int = 2) -> float:
    """Median seconds of one call, by events around each."""
    for _ in range(warm):
        work()
    events = [
        tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        for _ in range(repeat)
    ]
    for begin, end in events:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return float(statistics.median(begin.elapsed_time(end) for begin, end in events)) / 1e3


def graphed(work: Callable[[], object]) -> Callable[[], None]:
    """The same kernels without what launching them costs."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def ceilings() -> tuple[float, float]:
    """Bytes a second of a copy, FLOP a second of a bfloat16 product."""
    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / timed(partial(target.copy_, source))
    del source, target
    left, right = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    product = 2 * 8192**3 / timed(lambda: left @ right)
    return copy, product


class Streams:
    """Rows with a prompt each, on blocks of their own, decoded together one step ahead."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._step = 0
        info = engine.resolved
        self._width = (info.num_blocks - 1) // info.max_rows
        self._rng = torch.Generator().manual_seed(1)

    def spread(self, rows: int) -> None:
        """Deal all blocks to the first rows."""
        self._width = (self.engine.resolved.num_blocks - 1) // rows

    def _table(self, row: int, tokens: int) -> tuple[int, ...]:
        first = 1 + row * self._width
        count = blocks_for(tokens, self.engine.resolved.block_tokens)
        assert count <= self._width, "the pool is too small for this case"
        return tuple(range(first, first + count))

    def _launch(
        self, starts: tuple[RowStart, ...], items: tuple[ScheduledSequence, ...]
    ) -> PendingStep:
        self._step += 1
        return self.engine.step(StepPlan(self._step, starts, items))

    def prefill(self, rows: list[int], tokens: int, chunk: int) -> float:
        """Seconds until the last of these prompts has its first token."""
        vocab = self.engine.resolved.vocab_size
        prompts = {
            row: tuple(torch.randint(vocab, (tokens,), generator=self._rng).tolist())
            for row in rows
        }
        torch.cuda.synchronize()
        began = time.perf_counter()
        pending = None
        todo = [(row, first) for row in rows for first in range(0, tokens, chunk)]
        while todo:
            # As many prompts side by side as the chunk takes.
            batch = [todo.pop(0)]
            while todo and tokens < chunk and (len(batch) + 1) * tokens <= chunk:
                batch.append(todo.pop(0))
            starts = tuple(
                RowStart(row, GREEDY, 0, prompts[row], tokens) for row, first in batch if first == 0
            )
            items = tuple(
                ScheduledSequence(
                    row,
                    first,
                    prompts[row][first : first + chunk],
                    self._table(row, min(first + chunk, tokens)),
                    sample=first + chunk >= tokens,
                )
                for row, first in batch
            )
            pending = self._launch(starts, items)
        assert pending is not None
        pending.result()
        return time.perf_counter() - began

    def decode(self, rows: int, context: int, steps: int) -> float:
        """Seconds a step, as the worker's loop goes: one step under way behind the running one."""
        plans = [self._decoders(rows, context, step) for step in range(steps)]
        under_way: deque[PendingStep] = deque()
        marks: list[float] = []
        for items in plans:
            under_way.append(self._launch((), items))
            if len(under_way) > 1:
                under_way.popleft().result()
                marks.append(time.perf_counter())
        under_way.popleft().result()
        return (marks[-1] - marks[2]) / (len(marks) - 3)

    def decode_once(self, rows: int, context: int) -> None:
        """A single step, until its result is there."""
        self._launch((), self._decoders(rows, context, 0)).result()

    def _decoders(self, rows: int, context: int, step: int) -> tuple[ScheduledSequence, ...]:
        return tuple(
            ScheduledSequence(
                row,
                context + step,
                (),
                self._table(row, context + step + 1),
                sample=True,
                output_index=1 + step,
            )
            for row in range(rows)
        )


def matrix_elements(size: str) -> int:
    """Of one layer."""
    hidden, inter, _, heads, kv_heads, _ = QWEN3[size]
    return hidden * 128 * (2 * heads + 2 * kv_heads) + 3 * hidden * inter


@dataclass(frozen=True)
class Shape:
    """A model and how it is stored, as "8B", "8B:Q4_K" or "8B:bf16:q8_0"."""

    size: str
    storage: Storage

    @classmethod
    def parse(cls, text: str) -> Shape:
        size, _, rest = text.partition(":")
        weights, _, cache = rest.partition(":")
        return cls(size, Storage(weights or "bf16", cache or "auto"))

    def __str__(self) -> str:
        cache = "" if self.storage.cache == "auto" else f" cache {self.storage.cache}"
        return f"{self.size} {self.storage.weights}{cache}"

    @property
    def kv_bytes(self) -> int:
        """Of a token."""
        _, _, layers, _, kv_heads, _ = QWEN3[self.size]
        kind = "bf16" if self.storage.cache == "auto" else self.storage.cache
        return 2 * layers * kv_heads * head_bytes(kind, 128)  # type: ignore[arg-type]

    @property
    def decodes(self) -> list[tuple[int, int, float]]:
        """Rows, prompt tokens, and the peer's tokens a second: vLLM, llama.cpp if quantised."""
        return _DECODES.get((self.size, self.storage.weights), [(1, 128, 0.0)])

    @property
    def prefills(self) -> list[tuple[int, int, float]]:
        """Prompts, tokens of each, and the peer's tokens a second."""
        return _PREFILLS.get((self.size, self.storage.weights), [])


# A peer's figures for FP8 have not been taken on this GPU.
_FP8_MORE = [(8, 1024, 0.0), (16, 1024, 0.0), (64, 1024, 0.0), (256, 1024, 0.0)]
_DECODES = {
    ("0.6B", "bf16"): [(1, 128, 379.0), (16, 128, 6779.0), (64, 128, 19035.0), (256, 128, 29837.0)],
    ("8B", "bf16"): [
        (1, 128, 192.0),
        (16, 1024, 2715.0),
        (64, 1024, 7825.0),
        (256, 1024, 13147.0),
        (256, 128, 22745.0),
    ],
    ("8B", "FP8"): [(1, 128, 0.0), (2, 128, 0.0), (4, 128, 0.0), *_FP8_MORE],
    ("8B", "FP8row"): [(1, 128, 0.0), *_FP8_MORE],
    ("8B", "Q4_K"): [(1, 128, 249.0), (8, 1024, 892.0), (16, 1024, 1765.0), (64, 1024, 3539.0)],
    ("8B", "Q8_0"): [(1, 128, 225.0), (16, 1024, 0.0)],
    ("tiny", "bf16"): [(1, 128, 0.0), (5, 40, 0.0)],
}
_PREFILLS = {
    ("8B", "bf16"): [(1, 2048, 38556.0), (1, 8192, 36729.0), (8, 2048, 42089.0)],
    ("8B", "FP8"): [(1, 2048, 0.0), (1, 8192, 0.0), (8, 2048, 0.0)],
    ("8B", "FP8row"): [(1, 8192, 0.0)],
    ("8B", "Q4_K"): [(1, 8192, 10400.0)],
    ("8B", "Q8_0"): [(1, 8192, 11500.0)],
    ("0.6B", "bf16"): [(8, 2048, 0.0)],
}


class Table:
    """What was measured, against the ceilings of the same run."""

    def __init__(self, copy: float, product: float) -> None:
        self.copy, self.product = copy, product
        self.rows: list[dict[str, Any]] = []

    def decode(
        self, shape: Shape, step_bytes: int, case: tuple[int, int, float], seconds: float
    ) -> None:
        rows, context, peer = case
        floor = (step_bytes + rows * context * shape.kv_bytes) / self.copy
        name = f"decode {shape} batch {rows} context {context}"
        self._add(name, rows / seconds, floor / seconds, peer, seconds * 1e3)

    def prefill(self, shape: Shape, count: int, tokens: int, peer: float, seconds: float) -> None:
        _, _, layers, heads, _, _ = QWEN3[shape.size]
        elements = matrix_elements(shape.size)
        flops = 2 * layers * elements * tokens + 2 * tokens * tokens * heads * 128 * layers
        floor = count * flops / self.product
        name = f"prefill {shape} {count}x{tokens}"
        self._add(name, count * tokens / seconds, floor / seconds, peer, seconds * 1e3)

    def _add(self, name: str, rate: float, share: float, peer: float, ms: float) -> None:
        self.rows.append({"case": name, "rate": rate, "share": share, "peer": peer, "ms": ms})
        self._print(self.rows[-1])

    def _print(self, row: dict[str, Any]) -> None:
        ratio = f"{row['rate'] / row['peer']:5.2f}x peer" if row["peer"] else ""
        print(
            f"{row['case']:<46} {row['rate']:8.0f} tok/s  {row['ms']:8.3f} ms  "
            f"{row['share']:6.1%} of floor  {ratio}",
            flush=True,
        )

    def show(self) -> None:
        copy, product = self.copy / 1e12, self.product / 1e12
        print(f"\nceilings: copy {copy:.2f} TB/s, product {product:.0f} TFLOP/s")
        for row in self.rows:
            self._print(row)


def run_shape(shape: Shape, table: Table, *, quick: bool, profile: bool) -> None:
    """All cases of a shape on one engine; its rows and blocks are as large as the largest."""
    rows = max(count for count, _, _ in shape.decodes)
    pool = max(rows * (1024 + 256), 8 * 8192 + 4096)
    began = time.perf_counter()
    engine, step_bytes = random_engine(
        shape.size, open_device("cuda:0"), rows, 8448, pool, storage=shape.storage
    )
    loaded = time.perf_counter()
    engine.warm_up()
    print(
        f"{shape}: built in {loaded - began:.1f} s, warm in {time.perf_counter() - loaded:.1f} s, "
        f"weights {engine.resolved.weights_bytes >> 20} MiB, "
        f"{torch.cuda.memory_allocated() >> 20} MiB allocated, "
        f"{torch.cuda.memory_reserved() >> 20} reserved",
        flush=True,
    )
    streams = Streams(engine)
    steps = 40 if quick else 120
    for count, context, peer in shape.decodes:
        streams.prefill(list(range(count)), context, 2048)
        seconds = min(streams.decode(count, context, steps) for _ in range(2))
        table.decode(shape, step_bytes, (count, context + steps // 2, peer), seconds)
        print(f"    idle between steps {idle_share(engine, count, seconds):.1%}")
        if profile:
            breakdown(
                f"decode {shape} batch {count}",
                8,
                partial(streams.decode, count, context, 8),
            )
    streams.spread(8)
    for count, tokens, peer in shape.prefills:
        seconds = min(streams.prefill(list(range(count)), tokens, 2048) for _ in range(3))
        table.prefill(shape, count, tokens, peer, seconds)
        if profile and count == 1:
            work = partial(streams.prefill, [0], tokens, 2048)
            breakdown(f"prefill {shape} {tokens}", 1, work)
    engine.close()


def idle_share(engine: Engine, rows: int, step_seconds: float) -> float:
    """Part of a decode step in which the device has nothing to do: steps against bare replays.

    The replays repeat the last step, so their context is the last one too.
    """
    executor = engine._executor
    assert executor is not None
    size = next(each for each in executor._sizes if each >= rows)
    replay = executor._captured[size].graph.replay

    def several() -> None:
        for _ in range(20):
            replay()

    return max(0.0, 1 - timed(several, repeat=3, warm=1) / 20 / step_seconds)


def breakdown(name: str, steps: int, work: Callable[[], object]) -> None:
    """Where the device's time goes: kernels of some steps, microseconds a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        work()
        torch.cuda.synchronize()
    kernels = sorted(recorded.key_averages(), key=lambda each: -each.device_time_total)
    total = sum(each.device_time_total for each in kernels)
    print(f"{name}: kernels take {total / steps:.0f} us a step")
    for each in kernels[:16]:
        spent, count = each.device_time_total / steps, each.count / steps
        print(f"    {spent:9.1f} us {count:6.1f}x  {each.key[:70]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="0.6B,8B")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", action="store_true", help="where each step's time goes")
    options = parser.parse_args()
    table = Table(*ceilings())
    for text in options.cases.split(","):
        run_shape(Shape.parse(text), table, quick=options.quick, profile=options.profile)
    table.show()
    if options.out is not None:
        options.out.write_text(
            json.dumps({"copy": table.copy, "product": table.product, "rows": table.rows})
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
