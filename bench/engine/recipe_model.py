"""What the recipe's scheduling should cost on a GPU, by arithmetic: for comparing policies.

    PYTHONPATH=src:. python -m bench.engine.recipe_model [--eager-ms 9] [--rate 350000]

The real scheduler plans the recipe of 256 requests (`bench.engine.recipe`); each step is given
the time that its parts were seen to take on an H200 (0.6B, `docs/lab/gpu.md`). Nothing is
measured here, so only differences mean something.
"""

from __future__ import annotations

import argparse
import random
from collections import deque
from dataclasses import dataclass, field
from statistics import mean

import numpy as np
from bench.engine.host import BLOCK_TOKENS, MAX_CTX, geometry
from bench.engine.recipe import LONGEST, REQUESTS, SHORTEST

from luce.engine.device_inputs import StepShape
from luce.engine.mixed_shapes import fitting, mixed_shapes
from luce.kv.manager import KVManager
from luce.protocol.sampling import SamplingParams
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.plan import StepPlan, StepResult
from luce.scheduler.scheduler import Scheduler
from luce.sizing.steps import padded_sizes

CACHE_BYTES = 2 * 28 * 8 * 128 * 2
"""Of a token of the 0.6B shape."""
CACHE_RATE = 0.91 * 4.28e12
"""Bytes a second that attention reads."""
SEEN = {1: 1158, 16: 10_775, 64: 34_670, 256: 73_556}
"""Tokens a second of decode at 168 tokens of context, by rows."""


@dataclass(frozen=True)
class Costs:
    """Seconds of what a step is made of.

    Attributes:
        rate: prompt tokens a second.
        eager: the host's launches of a step that is not captured.
        captures: whether steps with prompts are.
    """

    rate: float
    eager: float
    captures: bool

    @property
    def quick_lines(self) -> int:
        """Tokens that the device computes while the host launches a step."""
        return int(self.eager * self.rate)

    def of(self, plan: StepPlan, shapes: tuple[StepShape, ...]) -> float:
        """Of one step, host or device, whichever takes longer."""
        shape = StepShape.of(plan.items)
        context = sum(item.start + 1 for item in plan.items if not item.token_ids)
        cache = context * CACHE_BYTES / CACHE_RATE
        if not shape.tokens:
            padded = next(size for size in padded_sizes(REQUESTS) if size >= shape.decode)
            return _fixed(padded) + cache
        captured = fitting(shapes, shape, self.quick_lines) if self.captures else None
        if captured is not None:
            return _fixed(16) + captured.lines / self.rate + cache
        return max(self.eager, _fixed(16) + shape.lines / self.rate + cache)


def _fixed(rows: int) -> float:
    """A decode step but for the cache."""
    seen = [count / rate - count * 168 * CACHE_BYTES / CACHE_RATE for count, rate in SEEN.items()]
    return float(np.interp(rows, list(SEEN), seen))


@dataclass
class Outcome:
    """Seconds, and how many steps."""

    seconds: float = 0.0
    steps: int = 0
    mixed: int = 0
    mixed_seconds: float = 0.0
    first_tokens: list[float] = field(default_factory=list)
    longest: float = 0.0


def run(chunk: int, costs: Costs) -> Outcome:
    """Plan the whole recipe."""
    rng = random.Random(0)
    requests = [
        (rng.randint(SHORTEST, LONGEST), rng.randint(SHORTEST, LONGEST)) for _ in range(REQUESTS)
    ]
    kv = KVManager(geometry(REQUESTS).num_blocks, BLOCK_TOKENS, b"model", prefix_cache=False)
    limits = SchedulerLimits(REQUESTS, MAX_CTX, chunk, quantum=BLOCK_TOKENS * 8)
    scheduler = Scheduler(kv, limits, lambda: 0, lambda: 1)
    for number, (prompt, output) in enumerate(requests):
        scheduler.submit(f"r{number}", (1,) * prompt, SamplingParams(max_tokens=output))
    shapes, done = mixed_shapes(REQUESTS, chunk, costs.quick_lines), Outcome()
    under_way: deque[StepPlan] = deque()
    while scheduler.has_work:
        plan = scheduler.plan()
        if plan is not None:
            seconds = costs.of(plan, shapes)
            is_mixed = bool(plan.items[-1].token_ids)
            done.seconds += seconds
            done.longest = max(done.longest, seconds)
            done.steps += 1
            done.mixed += is_mixed
            done.mixed_seconds += seconds * is_mixed
            ends = sum(item.sample and bool(item.token_ids) for item in plan.items)
            done.first_tokens += [done.seconds] * ends
            under_way.append(plan)
        if under_way and (plan is None or len(under_way) > 1):
            oldest = under_way.popleft()
            ids = (5,) * sum(item.sample for item in oldest.items)
            scheduler.apply(oldest, StepResult(oldest.step, ids))
        scheduler.take_retired()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eager-ms", type=float, default=9.0)
    parser.add_argument("--rate", type=float, default=350e3, help="prompt tokens a second")
    options = parser.parse_args()
    for captures in (False, True):
        costs = Costs(options.rate, options.eager_ms / 1e3, captures)
        for chunk in (512, 1024, 2048, 4096, 8192, 16384):
            found = run(chunk, costs)
            print(
                f"chunk {chunk:5}, prompts {'captured' if captures else 'kernel by kernel':16}: "
                f"{found.seconds:.2f} s in {found.steps} steps, the {found.mixed:3} with prompts "
                f"{found.mixed_seconds:.2f} s, first tokens after "
                f"{mean(found.first_tokens):.2f} s, longest step {found.longest * 1e3:.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
