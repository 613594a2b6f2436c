"""Between messages (msgspec) and the scheduler's plain values, and back."""

from __future__ import annotations

import math

import numpy as np

from luce.errors import ApiError
from luce.observability.memory import resident_bytes
from luce.protocol import messages as wire
from luce.protocol.paths import text_to_wire
from luce.protocol.sampling import SamplingParams
from luce.scheduler.outcome import (
    Busy,
    NeverFits,
    Rejected,
    RetiredSequence,
    SchedulerStats,
    StepOutcome,
)

MAX_LOGPROBS = 20

_TOKEN = np.dtype("<i4")


def prompt_ids(submit: wire.Submit, vocab_size: int) -> tuple[int, ...] | wire.Refused:
    """Token ids of a submission, or why its ids cannot be used with this vocabulary.

    The engine indexes tables with these numbers, so nothing out of range may pass.
    """
    if len(submit.prompt) % _TOKEN.itemsize:
        return _invalid(submit, f"The prompt has {len(submit.prompt)} bytes; an id has 4.")
    ids = np.frombuffer(submit.prompt, dtype=_TOKEN)
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        return _invalid(submit, f"Token id {outside[0]} is not below {vocab_size}.")
    problem = _problem_of(submit.sampling, vocab_size)
    return _invalid(submit, problem) if problem else tuple(ids.tolist())


def _problem_of(sampling: SamplingParams, vocab_size: int) -> str:
    """What is wrong with parameters that the engine would index tables with; empty: nothing."""
    for token_id, bias in sampling.logit_bias.items():
        if not 0 <= token_id < vocab_size:
            return f"logit_bias names token {token_id}, not below {vocab_size}."
        if not math.isfinite(bias):
            return f"logit_bias of token {token_id} is {bias}; send a number."
    forced = sampling.reasoning.forced_ids if sampling.reasoning is not None else ()
    for name, ids in (("stop_token_ids", sampling.stop_token_ids), ("forced_ids", forced)):
        outside = next((i for i in ids if not 0 <= i < vocab_size), None)
        if outside is not None:
            return f"{name} has token {outside}; ids are 0 to {vocab_size - 1}."
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        return f"logprobs is {sampling.logprobs}; it must be from 0 to {MAX_LOGPROBS}."
    return ""


def failed(request_id: str, error: ApiError) -> wire.Refused:
    """A request that cannot be served here or anywhere."""
    return wire.Refused(request_id, "failed", type(error).__name__, text_to_wire(str(error)))


def refusal(request_id: str, result: Busy | NeverFits | Rejected) -> wire.Refused:
    """The scheduler's no."""
    detail = f"{result.detail[:1].upper()}{result.detail[1:]}."
    if isinstance(result, Busy):
        return wire.Refused(request_id, "capacity", detail=detail)
    if isinstance(result, NeverFits):
        return wire.Refused(request_id, "never_fits", "ContextLengthExceeded", detail)
    return wire.Refused(request_id, "failed", "InvalidRequest", detail)


def step_output(step: int, outcome: StepOutcome) -> wire.StepOutput:
    """One frame for all deltas of a step."""
    deltas = [
        wire.SeqDelta(
            delta.request_id,
            list(delta.token_ids),
            delta.finish,
            None if delta.logprobs is None else list(delta.logprobs),
        )
        for delta in outcome.deltas
    ]
    return wire.StepOutput(step, deltas)


def retired(sequence: RetiredSequence) -> wire.Retired:
    """The last message of a request."""
    return wire.Retired(
        sequence.request_id,
        sequence.finish,
        wire.Usage(
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            completion_tokens=sequence.completion_tokens,
        ),
        wire.WorkerTimings(
            admitted_ns=sequence.admitted_ns,
            first_token_ns=sequence.first_token_ns,
            last_token_ns=sequence.last_token_ns,
            retired_ns=sequence.retired_ns,
        ),
        sequence.error,
        sequence.detail,
    )


def stats(scheduler: SchedulerStats) -> wire.Stats:
    """The scheduler's numbers and this process's resident bytes."""
    kv = scheduler.kv
    return wire.Stats(
        wire.WorkerStats(
            running=scheduler.running,
            preempted=scheduler.preempted,
            free_blocks=kv.free_blocks,
            cached_blocks=kv.cached_blocks,
            total_blocks=kv.total_blocks,
            steps=scheduler.steps,
            prompt_tokens=scheduler.prompt_tokens,
            generated_tokens=scheduler.generated_tokens,
            prefix_query_tokens=kv.query_tokens,
            prefix_hit_tokens=kv.hit_tokens,
            preemptions=scheduler.preemptions,
            rss_bytes=resident_bytes() or 0,
        )
    )


def _invalid(submit: wire.Submit, detail: str) -> wire.Refused:
    return wire.Refused(submit.request_id, "failed", "InvalidRequest", detail)
