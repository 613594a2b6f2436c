"""256 requests of 100 to 1,024 tokens in and out at random: engine, scheduler and KV manager.

    PYTHONPATH=src:. python -m bench.engine.recipe [--size 0.6B]

Output tokens over the time from the first submission to the last token, one step under way
behind the running one, as the worker's loop goes. No prefix cache, greedy, random weights.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections import deque

from bench.engine.shapes import CHUNK, random_engine

from luce.engine.device import open_device
from luce.engine.engine import Engine, PendingStep
from luce.kv.manager import KVManager
from luce.protocol.sampling import SamplingParams
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.outcome import Admitted
from luce.scheduler.plan import StepPlan
from luce.scheduler.scheduler import Scheduler

REQUESTS = 256
SHORTEST, LONGEST = 100, 1024


def make_scheduler(engine: Engine) -> Scheduler:
    """As the worker makes it, without a prefix cache."""
    info = engine.resolved
    kv = KVManager(info.num_blocks, info.block_tokens, b"recipe", prefix_cache=False)
    limits = SchedulerLimits(
        max_rows=info.max_rows, max_ctx=info.max_ctx, chunk=CHUNK, quantum=info.block_tokens * 8
    )
    return Scheduler(kv, limits, time.monotonic_ns, lambda: 1)


def run(engine: Engine, requests: list[tuple[int, int]]) -> tuple[int, float, int]:
    """Serve these (prompt, output) lengths: output tokens, seconds, steps."""
    scheduler = make_scheduler(engine)
    rng = random.Random(1)
    prompts = [tuple(rng.randrange(1000, 100_000) for _ in range(n)) for n, _ in requests]
    waiting = deque(enumerate(requests))
    under_way: deque[tuple[StepPlan, PendingStep]] = deque()
    tokens = steps = 0
    began = time.perf_counter()
    while waiting or scheduler.has_work:
        while waiting:
            number, (_, output) = waiting[0]
            asked = SamplingParams(max_tokens=output)
            if not isinstance(scheduler.submit(f"r{number}", prompts[number], asked), Admitted):
                break
            waiting.popleft()
        plan = scheduler.plan()
        if plan is not None:
            under_way.append((plan, engine.step(plan)))
            steps += 1
        if under_way and (plan is None or len(under_way) > 1):
            done, pending = under_way.popleft()
            outcome = scheduler.apply(done, pending.result())
            tokens += sum(len(delta.token_ids) for delta in outcome.deltas)
        scheduler.take_retired()
    return tokens, time.perf_counter() - began, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="0.6B")
    options = parser.parse_args()
    rng = random.Random(0)
    requests = [
        (rng.randint(SHORTEST, LONGEST), rng.randint(SHORTEST, LONGEST)) for _ in range(REQUESTS)
    ]
    pool = REQUESTS * (2 * LONGEST + 32)
    device = open_device("cuda:0")
    engine, _ = random_engine(options.size, device, REQUESTS, 2 * LONGEST + 32, pool)
    engine.warm_up()
    run(engine, requests[:8])
    gc.freeze()  # as the worker does
    tokens, seconds, steps = run(engine, requests)
    assert tokens == sum(output for _, output in requests), tokens
    print(
        f"recipe {options.size}: {tokens} tokens out of {sum(p for p, _ in requests)} in "
        f"{seconds:.2f} s, {steps} steps: {tokens / seconds:.0f} tok/s"
    )


if __name__ == "__main__":
    main()
