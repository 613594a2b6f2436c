"""256 requests of 100 to 1,024 tokens in and out at random: engine, scheduler and KV manager.

    PYTHONPATH=src:. python -m bench.engine.recipe [--size 0.6B] [--chunk 2048,4096,8192]

Output tokens over the time from the first submission to the last token, one step under way
behind the running one, as the worker's loop goes. No prefix cache, greedy, random weights. Each
run is made twice, first with steps with prompts kernel by kernel, then with those that are
captured; and so are lone prompts. It says what kinds of steps took, and how often a step's
result was there before it was asked for, so that the device waited for the host.
`--usual-launches` leaves all launches to Triton, `--unordered` has attention take rows as they
come, and not the longest first.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from bench.engine import shapes
from bench.engine.shapes import CHUNK, random_engine

from luce.engine.device import open_device
from luce.engine.engine import Engine, PendingStep
from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.triton import launching
from luce.kv.manager import KVManager
from luce.protocol.sampling import SamplingParams
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.outcome import Admitted
from luce.scheduler.plan import StepPlan
from luce.scheduler.scheduler import Scheduler

REQUESTS = 256
ALONE = (16, 100, 400, 1000, 1600)
"""Tokens of prompts that are served with nobody else there."""
SHORTEST, LONGEST = 100, 1024


def make_scheduler(engine: Engine, chunk: int) -> Scheduler:
    """As the worker makes it, without a prefix cache."""
    info = engine.resolved
    kv = KVManager(info.num_blocks, info.block_tokens, b"recipe", prefix_cache=False)
    limits = SchedulerLimits(
        max_rows=info.max_rows, max_ctx=info.max_ctx, chunk=chunk, quantum=info.block_tokens * 8
    )
    return Scheduler(kv, limits, time.monotonic_ns, lambda: 1)


ROWS = (256, 192, 128, 64, 32, 16, 8)
"""Upper bounds of decode rows by which steps are told apart."""
AT_ONCE_S = 20e-6
"""A result that takes less was there before it was asked for: the device had run out of steps."""


@dataclass
class Kind:
    """Steps of a kind.

    Attributes:
        count: of them.
        seconds: from the result of the step before, or the begin, to theirs.
        late: of them whose result was there before it was asked for.
    """

    count: int = 0
    seconds: float = 0.0
    late: int = 0


@dataclass
class Run:
    """What serving the requests took.

    Attributes:
        tokens: that came out.
        seconds: in all.
        launched: until the first step was.
        kinds: of steps, by "prompts" or most decode rows.
    """

    tokens: int = 0
    seconds: float = 0.0
    launched: float = 0.0
    kinds: dict[str, Kind] = field(default_factory=dict)

    def count(self, plan: StepPlan, seconds: float, waited: float) -> None:
        """A step's result is there."""
        rows = len(plan.items)
        name = str(min(each for each in ROWS if each >= rows))
        kind = self.kinds.setdefault("prompts" if plan.items[-1].token_ids else name, Kind())
        kind.count += 1
        kind.seconds += seconds
        kind.late += waited < AT_ONCE_S

    @property
    def summary(self) -> str:
        """The kinds' steps, milliseconds of one, and how many the host was late for."""
        parts = [
            f"{name} {kind.count} x {kind.seconds / kind.count * 1e3:.2f} ({kind.late})"
            for name, kind in self.kinds.items()
        ]
        return f"first launch {self.launched * 1e3:.1f} ms; steps x ms (late): " + ", ".join(parts)


def run(engine: Engine, requests: list[tuple[int, int]], chunk: int) -> Run:
    """Serve these (prompt, output) lengths."""
    scheduler = make_scheduler(engine, chunk)
    rng = random.Random(1)
    prompts = [tuple(rng.randrange(1000, 100_000) for _ in range(n)) for n, _ in requests]
    waiting = deque(enumerate(requests))
    under_way: deque[tuple[StepPlan, PendingStep]] = deque()
    done = Run()
    began = last = time.perf_counter()
    while waiting or scheduler.has_work:
        # As the worker's loop: an idle device waits for no more than fills it a step.
        while waiting and (under_way or not scheduler.fills_step):
            number, (_, output) = waiting[0]
            asked = SamplingParams(max_tokens=output)
            if not isinstance(scheduler.submit(f"r{number}", prompts[number], asked), Admitted):
                break
            waiting.popleft()
        plan = scheduler.plan()
        if plan is not None:
            under_way.append((plan, engine.step(plan)))
            done.launched = done.launched or time.perf_counter() - began
        if under_way and (plan is None or len(under_way) > 1):
            oldest, pending = under_way.popleft()
            asked_at = time.perf_counter()
            result = pending.result()
            now = time.perf_counter()
            done.count(oldest, now - last, now - asked_at)
            last = now
            outcome = scheduler.apply(oldest, result)
            done.tokens += sum(len(delta.token_ids) for delta in outcome.deltas)
        scheduler.take_retired()
    done.seconds = time.perf_counter() - began
    return done


def first_token_ms(engine: Engine, tokens: int, chunk: int) -> float:
    """Of a prompt with nobody else there; the median of some."""
    return median(run(engine, [(tokens, 1)], chunk).seconds * 1e3 for _ in range(12))


def measure(size: str, chunk: int, requests: list[tuple[int, int]]) -> None:
    """Both ways, on one engine."""
    longest = 2 * LONGEST + 32
    shapes.CHUNK = chunk
    engine, _ = random_engine(size, open_device("cuda:0"), REQUESTS, longest, REQUESTS * longest)
    engine.warm_up()
    executor = engine._executor
    assert executor is not None
    captured = dict(executor._mixed)
    gc.collect()
    gc.freeze()  # as the worker does
    for name, mixed in (("kernel by kernel", {}), ("captured", captured)):
        executor._mixed = mixed
        run(engine, requests[:8], chunk)
        found = run(engine, requests, chunk)
        assert found.tokens == sum(output for _, output in requests), found.tokens
        print(
            f"recipe {size} chunk {chunk}, prompts {name}: {found.tokens} tokens in "
            f"{found.seconds:.2f} s, {found.tokens / found.seconds:.0f} tok/s; {found.summary}"
        )
        alone = (f"{n} {first_token_ms(engine, n, chunk):.2f}" for n in ALONE)
        print("    first token of a prompt alone, tokens and ms: " + ", ".join(alone), flush=True)
    engine.close()
    gc.unfreeze()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="0.6B")
    parser.add_argument("--chunk", default=str(CHUNK), help="one or more, by commas")
    parser.add_argument("--usual-launches", action="store_true")
    parser.add_argument("--unordered", action="store_true")
    options = parser.parse_args()
    if options.usual_launches:
        launching.direct = lambda kernel: kernel
    if options.unordered:
        from luce.engine import device_inputs

        vars(device_inputs)["AttentionTensors"] = lambda **named: AttentionTensors(
            **named | {"order": None}
        )
    rng = random.Random(0)
    requests = [
        (rng.randint(SHORTEST, LONGEST), rng.randint(SHORTEST, LONGEST)) for _ in range(REQUESTS)
    ]
    for chunk in options.chunk.split(","):
        measure(options.size, int(chunk), requests)


if __name__ == "__main__":
    main()
