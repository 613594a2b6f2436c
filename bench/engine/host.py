"""What a step costs the worker's thread beside the device: the recipe against steps of no work.

    PYTHONPATH=src:. python -m bench.engine.host [--rows 256] [--repeat 3]

The worker's own loop, scheduler, plan check and executor run 256 requests of 100 to 1,024 tokens
in and out; only kernels are left out. CPU time of the thread, so that other work on the machine
spoils little; of each step the median, of several runs the best. Uploads and read-backs go to
host memory: what a driver's calls cost is not in it.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch
from bench.engine.recipe import LONGEST, SHORTEST
from bench.engine.shapes import CHUNK

from luce.engine import device_inputs
from luce.engine.device_executor import DeviceExecutor
from luce.engine.engine import PendingStep
from luce.engine.extras import RowExtras
from luce.engine.inputs import InputBatch
from luce.engine.mixed_shapes import mixed_shapes
from luce.engine.ops.triton.lanes import BegunDecode
from luce.engine.ops.triton.sampling import StepLogits
from luce.engine.options import EngineInfo
from luce.engine.plan_check import PlanCheck
from luce.kv.manager import KVManager
from luce.kv.spec import blocks_for
from luce.protocol import messages as wire
from luce.protocol.frames import encode_frame
from luce.protocol.sampling import SamplingParams
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.plan import StepPlan
from luce.scheduler.scheduler import Scheduler
from luce.worker import convert
from luce.worker.loop import WorkerLoop
from luce.worker.ports import Incoming, LoopOptions

BLOCK_TOKENS = 16
VOCAB = 151_936
MAX_CTX = 2 * LONGEST + 32


def geometry(rows: int) -> EngineInfo:
    """Of the recipe's engine."""
    pool = rows * MAX_CTX
    return EngineInfo(
        architecture="qwen3", device="none", dtype="bfloat16", max_ctx=MAX_CTX,
        kv_pool_tokens=pool, num_blocks=blocks_for(pool, BLOCK_TOKENS) + 1,
        block_tokens=BLOCK_TOKENS, max_rows=rows, weights_bytes=0, kv_bytes=0, vocab_size=VOCAB,
        num_layers=28, hidden_size=1024,
    )  # fmt: skip


OWN = "bench"
"""The part that is no part of the worker."""


@dataclass
class Meter:
    """CPU time of the thread by part of a step.

    Attributes:
        steps: decode-only or mixed, and nanoseconds by part, of each step.
    """

    steps: list[tuple[bool, dict[str, int]]] = field(default_factory=list)
    _parts: dict[str, int] = field(default_factory=dict)
    _inner: int = 0

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        """`work`, its own time counted: without that of timed parts inside it."""

        @wraps(work)
        def run(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner = self._inner, 0
            began = time.thread_time_ns()
            try:
                return work(*args, **kwargs)
            finally:
                spent = time.thread_time_ns() - began
                self._parts[part] = self._parts.get(part, 0) + spent - self._inner
                self._inner = outer + spent

        return run

    def cut(self, *, is_mixed: bool) -> None:
        """A step begins: what was spent since the last one is that one's."""
        self._parts.pop(OWN, None)
        self.steps.append((is_mixed, self._parts))
        self._parts = {}


class _Captured:
    """A captured step of no work."""

    def __init__(self, rows: int) -> None:
        self.graph = self
        self.token_ids = torch.full((rows,), 1000, dtype=torch.int32)
        raw = torch.zeros(rows, 1)
        self.logits = StepLogits(raw, raw)

    def replay(self) -> None:
        """As the driver's launch, without one."""


class _NoModel:
    """A runner of a model without layers."""

    states = None

    def start_states(self, starts: object) -> None:
        """The model has none."""

    def save_states(self, items: object) -> None:
        """The model has none."""

    def raw_logits(self, batch: InputBatch, tap: object = None) -> torch.Tensor | None:
        """f32 [sampled, 1]."""
        count = len(batch.sampled_rows)
        return torch.zeros(count, 1) if count else None


class _NoSampler:
    """Chooses token 1000."""

    def adjust(self, raw: torch.Tensor, lanes: torch.Tensor) -> StepLogits:
        """Nothing to change."""
        return StepLogits(raw, raw)

    def choose(self, logits: StepLogits, lanes: torch.Tensor) -> torch.Tensor:
        """i32 [n]."""
        return torch.full((len(logits.raw),), 1000, dtype=torch.int32)


def _begin(lanes: torch.Tensor, *_: object) -> BegunDecode:
    """In place of the kernel: tensors of the right shapes."""
    narrow = torch.zeros(len(lanes), dtype=torch.int32)
    return BegunDecode(narrow, narrow.long(), narrow, narrow, narrow, narrow, narrow)


class HostEngine:
    """The engine's host side on a GPU: plan check, extras, executor."""

    def __init__(self, info: EngineInfo, meter: Meter, *, captures_prompts: bool) -> None:
        self._check = PlanCheck(info)
        self._extras = RowExtras(info.max_rows, info.vocab_size)
        executor: Any = DeviceExecutor(_NoModel(), info, torch.device("cpu"))  # type: ignore[arg-type]
        executor._sampler = _NoSampler()
        captured = _Captured(info.max_rows)
        executor._captured = dict.fromkeys(executor._sizes, captured)
        executor._mixed = {
            shape: (torch.zeros(sum(shape.parts), dtype=torch.int32), captured)
            for shape in (mixed_shapes(info.max_rows, CHUNK) if captures_prompts else ())
        }
        executor._ring.place.tokens.fill_(1000)
        self._executor = executor
        self._meter = meter
        self._cut = meter.timed(OWN, meter.cut)
        self._check.check = meter.timed("check plan", self._check.check)  # type: ignore[method-assign]
        executor.launch = meter.timed("inputs and launch", executor.launch)
        self._extras.begin = meter.timed("extras", self._extras.begin)  # type: ignore[method-assign]

    def step(self, plan: StepPlan) -> PendingStep:
        """As `Engine.step`."""
        self._cut(is_mixed=bool(plan.items[-1].token_ids))
        self._check.check(plan)
        with torch.inference_mode():
            self._extras.start(plan.starts)
            extras = self._extras.begin(plan.items)
            read = self._meter.timed("read tokens", self._executor.launch(plan, extras))
            return PendingStep(plan.step, read, tuple)

    def expert_loads(self) -> None:
        """The model has no mixtures."""


class Post:
    """Submits everything at once, encodes what is sent, and shuts down when all are done."""

    def __init__(self, submits: Sequence[wire.Submit], meter: Meter) -> None:
        self._inbox: list[Incoming] = list(submits)
        self._left = len(submits)
        self.tokens = 0
        self._encode = meter.timed("encode", encode_frame)
        self._note = meter.timed(OWN, self._count)

    def receive(self, *, wait: bool) -> list[Incoming]:
        """What has come."""
        del wait
        messages, self._inbox = self._inbox, []
        return messages

    def post(self, message: Incoming) -> None:
        """Into the inbox."""
        self._inbox.append(message)

    def send(self, message: wire.ToListener) -> None:
        """Encode, and count."""
        self._encode(message)
        self._note(message)

    def _count(self, message: wire.ToListener) -> None:
        if isinstance(message, wire.StepOutput):
            self.tokens += sum(len(delta.token_ids) for delta in message.deltas)
        elif isinstance(message, wire.Retired):
            self._left -= 1
            if not self._left:
                self._inbox.append(wire.Shutdown(0.0))


def submits(rows: int) -> list[wire.Submit]:
    """The recipe's requests."""
    rng = random.Random(0)
    lengths = [
        (rng.randint(SHORTEST, LONGEST), rng.randint(SHORTEST, LONGEST)) for _ in range(rows)
    ]
    ids = np.random.default_rng(1)
    return [
        wire.Submit(
            f"r{number}",
            ids.integers(1000, 100_000, prompt).astype("<i4").tobytes(),
            SamplingParams(max_tokens=output),
        )
        for number, (prompt, output) in enumerate(lengths)
    ]


def run(rows: int, *, prefix_cache: bool, captures_prompts: bool) -> Meter:
    """Serve the recipe once."""
    meter, info = Meter(), geometry(rows)
    kv = KVManager(info.num_blocks, info.block_tokens, b"host", prefix_cache=prefix_cache)
    limits = SchedulerLimits(
        max_rows=rows, max_ctx=MAX_CTX, chunk=CHUNK, quantum=info.block_tokens * 8
    )
    scheduler = Scheduler(kv, limits, time.monotonic_ns, lambda: 1)
    scheduler.plan = meter.timed("plan", scheduler.plan)  # type: ignore[method-assign]
    scheduler.apply = meter.timed("apply", scheduler.apply)  # type: ignore[method-assign]
    asked = submits(rows)
    post = Post(asked, meter)
    engine: Any = HostEngine(info, meter, captures_prompts=captures_prompts)
    loop = WorkerLoop(engine, scheduler, post, LoopOptions(VOCAB, 1, time.monotonic_ns, 28, 1024))
    # What is left of a turn: the loop itself, statistics.
    loop._advance = meter.timed("loop", loop._advance)  # type: ignore[method-assign]
    loop._report = meter.timed("statistics", loop._report)  # type: ignore[method-assign]
    outputs = meter.timed("deltas", convert.step_outputs)
    gc.collect()
    gc.freeze()
    with (
        mock.patch.object(device_inputs, "begin_decode", _begin),
        mock.patch.object(convert, "step_outputs", outputs),
    ):
        loop.run()
    gc.unfreeze()
    assert post.tokens == sum(each.sampling.max_tokens for each in asked), post.tokens
    return meter


def table(runs: Sequence[Meter], *, is_mixed: bool, steps: slice) -> dict[str, float]:
    """Microseconds a step by part: the median of a run's steps, the least of the runs'."""
    best: dict[str, float] = {}
    for meter in runs:
        chosen = [parts for mixed, parts in meter.steps[steps] if mixed is is_mixed]
        for part in {part for parts in chosen for part in parts} | {"all"}:
            values = [
                sum(parts.values()) if part == "all" else parts.get(part, 0) for parts in chosen
            ]
            best[part] = min(best.get(part, float("inf")), median(values) / 1e3)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--prefix-cache", action="store_true")
    parser.add_argument("--eager", action="store_true", help="steps with prompts are not captured")
    options = parser.parse_args()
    runs = [
        run(
            options.rows,
            prefix_cache=options.prefix_cache,
            captures_prompts=not options.eager,
        )
        for _ in range(options.repeat)
    ]
    total = min(sum(sum(parts.values()) for _, parts in meter.steps) for meter in runs)
    mixed = sum(is_mixed for is_mixed, _ in runs[0].steps)
    print(f"{len(runs[0].steps)} steps, {mixed} mixed: {total / 1e6:.0f} ms of CPU in all")
    # The first steps of each run find caches cold; until the first ends, all rows are in.
    full = slice(mixed + 2, mixed + 60)
    for name, chosen in (
        ("mixed", table(runs, is_mixed=True, steps=slice(4, None))),
        (f"decode, all {options.rows} rows", table(runs, is_mixed=False, steps=full)),
    ):
        parts = sorted(chosen.items(), key=lambda pair: -pair[1])
        print(f"{name}: " + ", ".join(f"{part} {spent:.0f}" for part, spent in parts) + " us")


if __name__ == "__main__":
    main()
