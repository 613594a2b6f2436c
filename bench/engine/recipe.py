"""256 requests of 100 to 1,024 tokens in and out at random: engine, scheduler and KV manager.

    PYTHONPATH=src:. python -m bench.engine.recipe [--size 0.6B] [--chunk 2048,4096,8192]

Output tokens over the time from the first submission to the last token, one step under way
behind the running one, as the worker's loop goes. No prefix cache, greedy, random weights. Each
run is made twice, first with steps with prompts kernel by kernel, then with those that are
captured; and so is a lone prompt of 16 tokens. `--usual-launches` leaves all launches to Triton,
`--unordered` has attention take rows as they come, and not the longest first.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections import deque
from dataclasses import dataclass
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
SHORTEST, LONGEST = 100, 1024


def make_scheduler(engine: Engine, chunk: int) -> Scheduler:
    """As the worker makes it, without a prefix cache."""
    info = engine.resolved
    kv = KVManager(info.num_blocks, info.block_tokens, b"recipe", prefix_cache=False)
    limits = SchedulerLimits(
        max_rows=info.max_rows, max_ctx=info.max_ctx, chunk=chunk, quantum=info.block_tokens * 8
    )
    return Scheduler(kv, limits, time.monotonic_ns, lambda: 1)


@dataclass
class Run:
    """What serving the requests took.

    Attributes:
        tokens: that came out.
        seconds: in all.
        steps: in all.
        mixed: of them with prompts.
        mixed_seconds: until the last of those was launched.
    """

    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    mixed: int = 0
    mixed_seconds: float = 0.0


def run(engine: Engine, requests: list[tuple[int, int]], chunk: int) -> Run:
    """Serve these (prompt, output) lengths."""
    scheduler = make_scheduler(engine, chunk)
    rng = random.Random(1)
    prompts = [tuple(rng.randrange(1000, 100_000) for _ in range(n)) for n, _ in requests]
    waiting = deque(enumerate(requests))
    under_way: deque[tuple[StepPlan, PendingStep]] = deque()
    done = Run()
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
            done.steps += 1
            if plan.items[-1].token_ids:
                done.mixed += 1
                done.mixed_seconds = time.perf_counter() - began
        if under_way and (plan is None or len(under_way) > 1):
            oldest, pending = under_way.popleft()
            outcome = scheduler.apply(oldest, pending.result())
            done.tokens += sum(len(delta.token_ids) for delta in outcome.deltas)
        scheduler.take_retired()
    done.seconds = time.perf_counter() - began
    return done


def first_token_ms(engine: Engine, chunk: int) -> float:
    """Of a prompt of 16 tokens with nobody else there; the median of some."""
    times = []
    for _ in range(20):
        found = run(engine, [(16, 1)], chunk)
        times.append(found.seconds * 1e3)
    return median(times)


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
            f"recipe {size} chunk {chunk}, prompts {name}: {found.tokens} tokens out of "
            f"{sum(prompt for prompt, _ in requests)} in {found.seconds:.2f} s, {found.steps} "
            f"steps, the {found.mixed} with prompts in {found.mixed_seconds:.2f} s: "
            f"{found.tokens / found.seconds:.0f} tok/s; 16 tokens alone "
            f"{first_token_ms(engine, chunk):.2f} ms",
            flush=True,
        )
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
