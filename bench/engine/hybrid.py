"""Speed of hybrids and mixtures of experts on a GPU, random weights; as `bench.engine.gpu`.

    PYTHONPATH=src:. python -m bench.engine.hybrid [--cases 27B,27B:Q4_K,35B-A3B/8] [--profile]

"35B-A3B/8" has eight layers of that model, which is built in a fifth of the time.
The floor of a decode step is what it must move: matrices once, keys and values of the contexts,
each sequence's states read and written, and the experts that tokens of a step did choose.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from bench.engine.gpu import GREEDY, Streams, breakdown, ceilings
from bench.engine.hybrid_shapes import HybridPart, hybrid_engine, hybrid_hparams
from bench.engine.shapes import CHUNK, Storage
from bench.engine.timeline import show_timeline

from luce.engine.device import open_device
from luce.loaders.hparams import HParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.sizing.geometry import kv_spec, state_spec

_PREFILL = 8192
_PROMPT, _NEW = 4096, (64, 16)
"""Of a prefix hit: all of a prompt, and what of it is not cached: about what a turn of a chat
leaves (`docs/lab/hybrid.md`), and what the scheduler leaves of a prompt that was seen before."""
_STEPS = 24
_DECODES = ((1, 128), (16, 1024), (64, 1024))


def experts_hit(hparams: HParams, rows: int) -> float:
    """Experts of a layer that some token of a step chooses, if all are as likely."""
    experts = hparams.experts
    if experts is None:
        return 0.0
    missed = (1 - experts.num_per_token / experts.num_experts) ** rows
    return experts.num_experts * (1 - missed)


def experts_chosen(streams: Streams, rows: int, context: int) -> float:
    """Experts of a layer that a step's tokens did choose, the mean of all layers."""
    before = streams.engine.expert_loads()
    if before is None:
        return 0.0
    streams.decode_once(rows, context)
    after = streams.engine.expert_loads()
    assert after is not None
    return float((after > before).sum(axis=1).mean())


def prefill_flops(hparams: HParams, step_elements: int, tokens: int) -> float:
    """Of matrices, and of full attention's scores and sums over half the context."""
    heads = hparams.num_heads * hparams.head_dim
    attention = 2 * tokens * tokens * heads * hparams.num_attention_layers
    return 2.0 * step_elements * tokens + attention


def show(name: str, rate: float, seconds: float, floor: float) -> None:
    print(
        f"{name:<40} {rate:8.0f} tok/s  {seconds * 1e3:8.3f} ms  {floor / seconds:6.1%} of floor",
        flush=True,
    )


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        copy: bytes a second.
        product: FLOP a second.
        decodes: rows and context of each.
        profile: show where steps' time goes.
        timeline: show one step's kernels in their order.
        prompts: measure those too.
    """

    copy: float
    product: float
    decodes: tuple[tuple[int, int], ...]
    profile: bool
    timeline: bool
    prompts: bool


def run(case: str, plan: Plan) -> None:
    """A shape's cases on one engine."""
    name, _, weights = case.partition(":")
    rows = max(count for count, _ in plan.decodes)
    began = time.perf_counter()
    pool = max(rows * 1152, _PREFILL + 128)
    engine, parameters = hybrid_engine(
        name, open_device("cuda:0"), rows, pool, _PREFILL + 256, Storage(weights or "bf16")
    )
    info = engine.resolved
    print(
        f"{case}: built in {time.perf_counter() - began:.1f} s, weights "
        f"{info.weights_bytes >> 20} MiB, states {info.state_bytes >> 20} MiB",
        flush=True,
    )
    began = time.perf_counter()
    engine.warm_up()
    print(f"{case}: warm in {time.perf_counter() - began:.1f} s", flush=True)
    streams = Streams(engine)
    if plan.prompts:
        measure_prefill(case, streams, plan)
        measure_hit(case, streams, plan)
    for count, context in plan.decodes:
        measure_decode(case, streams, parameters, plan, (count, context))
    engine.close()
    torch.cuda.empty_cache()


def measure_decode(
    case: str,
    streams: Streams,
    parameters: HybridPart,
    plan: Plan,
    step: tuple[int, int],
) -> None:
    """So many rows at such a context."""
    hparams, (count, context) = hybrid_hparams(case.partition(":")[0]), step
    state = state_spec(hparams, 2)
    assert state is not None
    kv_bytes = kv_spec(hparams, 1, 2).bytes_per_block
    streams.spread(count)
    streams.prefill(list(range(count)), context, CHUNK)
    seconds = min(streams.decode(count, context, _STEPS) for _ in range(2))
    per_row = (context + _STEPS // 2) * kv_bytes + 2 * state.bytes_per_slot
    chosen = experts_chosen(streams, count, context)
    experts = parameters.expert_bytes * chosen
    floor = (parameters.step_bytes + experts + count * per_row) / plan.copy
    show(f"decode {case} batch {count} context {context}", count / seconds, seconds, floor)
    if chosen:
        even = experts_hit(hparams, count)
        print(f"    experts of a layer: {chosen:.0f} chosen, {even:.0f} if all were as likely")
    if plan.profile:
        breakdown(f"batch {count}", 8, partial(streams.decode, count, context, 8))
    if plan.timeline:
        show_timeline(f"batch {count}", partial(streams.decode, count, context, 16))


def measure_prefill(case: str, streams: Streams, plan: Plan) -> None:
    """One long prompt."""
    hparams = hybrid_hparams(case.partition(":")[0])
    streams.spread(1)
    seconds = min(streams.prefill([0], _PREFILL, CHUNK) for _ in range(2))
    floor = prefill_flops(hparams, _token_elements(hparams), _PREFILL) / plan.product
    show(f"prefill {case} 1x{_PREFILL}", _PREFILL / seconds, seconds, floor)
    if plan.profile:
        breakdown(f"prefill {_PREFILL}", 1, partial(streams.prefill, [0], _PREFILL, CHUNK))


def measure_hit(case: str, streams: Streams, plan: Plan) -> None:
    """A prompt whose state was saved before its last tokens, against all of it."""
    streams.spread(1)
    whole = min(streams.prefill([0], _PROMPT, CHUNK) for _ in range(2))
    for new in _NEW:
        hit = _prepared_hit(streams, new)
        seconds = min(hit() for _ in range(20))
        print(
            f"prefix hit {case}: all {_PROMPT} tokens {whole * 1e3:.2f} ms, the last {new} alone "
            f"{seconds * 1e3:.2f} ms: {seconds / whole:.1%}",
            flush=True,
        )
        if plan.profile:
            breakdown(f"prefix hit, {new} tokens", 4, partial(_repeat, hit, 4))


def _repeat(work: Callable[[], float], times: int) -> list[float]:
    return [work() for _ in range(times)]


def _prepared_hit(streams: Streams, new: int) -> Callable[[], float]:
    """Compute all of a prompt but its last tokens; the seconds that those take, each time anew."""
    prompt, table = (1,) * _PROMPT, streams._table(0, _PROMPT)
    last, step = _PROMPT - new, streams.engine.step
    pieces = [(first, min(first + CHUNK, last)) for first in range(0, last, CHUNK)]
    for first, stop in pieces:
        start = RowStart(0, GREEDY, 0, prompt, _PROMPT)
        saved = 0 if stop == last else None
        item = ScheduledSequence(
            0, first, prompt[first:stop], table, sample=False, save_checkpoint=saved
        )
        step(StepPlan(1, (start,) if first == 0 else (), (item,))).result()
    again = RowStart(0, GREEDY, 0, prompt, _PROMPT, restore_checkpoint=0)
    rest = ScheduledSequence(0, last, prompt[last:], table, sample=True)

    def hit() -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        step(StepPlan(1, (again,), (rest,))).result()
        return time.perf_counter() - began

    return hit


def _token_elements(hparams: HParams) -> int:
    """Weights that one token of a prompt is multiplied by; the output matrix is not."""
    linear, hidden = hparams.linear_attention, hparams.hidden_size
    assert linear is not None
    channels = linear.conv_channels + linear.value_size + 2 * linear.num_value_heads
    delta = hidden * (channels + linear.value_size)
    rows = 3 * hparams.num_heads + 2 * hparams.num_kv_heads
    attention = hidden * rows * hparams.head_dim
    feed = 3 * hparams.intermediate_size
    experts = hparams.experts
    if experts is not None:
        routed = 3 * experts.num_per_token * experts.size
        feed = routed + 3 * experts.shared_size + experts.num_experts
    mixing = linear.num_layers * delta + hparams.num_attention_layers * attention
    return mixing + hparams.num_layers * feed * hidden


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="27B,35B-A3B")
    parser.add_argument("--rows", default="1,16,64", help="batches of decode")
    parser.add_argument("--profile", action="store_true", help="where each step's time goes")
    parser.add_argument(
        "--timeline", action="store_true", help="a step of decode, kernel by kernel"
    )
    parser.add_argument("--decode", action="store_true", help="no prompts")
    options = parser.parse_args()
    copy, product = ceilings()
    torch.cuda.empty_cache()
    print(f"ceilings: copy {copy / 1e12:.2f} TB/s, product {product / 1e12:.0f} TFLOP/s")
    wanted = {int(each) for each in options.rows.split(",")}
    decodes = tuple(each for each in _DECODES if each[0] in wanted)
    for case in options.cases.split(","):
        plan = Plan(
            copy,
            product,
            decodes,
            profile=options.profile,
            timeline=options.timeline,
            prompts=not options.decode,
        )
        run(case, plan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
