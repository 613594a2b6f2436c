"""Between messages (msgspec) and the scheduler's plain values, and back."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from luce.errors import ApiError
from luce.observability.memory import resident_bytes
from luce.protocol import messages as wire
from luce.protocol.frames import MAX_FRAME_BYTES
from luce.protocol.paths import text_to_wire
from luce.protocol.sampling import SamplingParams
from luce.scheduler.outcome import (
    Busy,
    NeverFits,
    Rejected,
    RetiredSequence,
    SchedulerStats,
    SequenceDelta,
    StepOutcome,
)

MAX_LOGPROBS = 20

MAX_HIDDEN_BYTES = MAX_FRAME_BYTES - (1 << 16)
"""Of one request: its states come in one frame."""

_TOKEN = np.dtype("<i4")
_HIDDEN = np.dtype("<f4")


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


def with_layers(
    submit: wire.Submit, num_layers: int, hidden_size: int
) -> SamplingParams | wire.Refused:
    """Parameters with the layers to be read counted from 0, or why they cannot be read."""
    sampling = submit.sampling
    read = sampling.hidden
    if read is None:
        return sampling
    if not read.layers or not all(-num_layers <= each < num_layers for each in read.layers):
        return _invalid(submit, f"layers must be {-num_layers} to {num_layers - 1}.")
    nbytes = len(read.layers) * hidden_size * _HIDDEN.itemsize * (2 if read.wants_mean else 1)
    if nbytes > MAX_HIDDEN_BYTES:
        return _invalid(submit, f"{len(read.layers)} layers are too many for one answer.")
    layers = tuple(each % num_layers for each in read.layers)
    return replace(sampling, hidden=replace(read, layers=layers))


def _problem_of(sampling: SamplingParams, vocab_size: int) -> str:
    """What is wrong with parameters that the engine would index tables with; empty: nothing."""
    for token_id, bias in sampling.logit_bias.items():
        if not 0 <= token_id < vocab_size:
            return f"logit_bias names token {token_id}, not below {vocab_size}."
        if not math.isfinite(bias):
            return f"logit_bias of token {token_id} is {bias}; send a number."
    lists = [("stop_token_ids", sampling.stop_token_ids)]
    if sampling.reasoning is not None:
        halves = () if sampling.reasoning.texts is None else sampling.reasoning.texts.half_ids
        lists += [("forced_ids", ids) for ids in (sampling.reasoning.forced_ids, *halves)]
    for name, ids in lists:
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


def step_outputs(step: int, outcome: StepOutcome) -> list[wire.StepOutput]:
    """One frame for all deltas of a step; hidden states are large and get one each."""
    plain = [_delta(delta) for delta in outcome.deltas if delta.hidden is None]
    frames = [wire.StepOutput(step, plain)] if plain else []
    return frames + [
        wire.StepOutput(step, [_delta(delta)]) for delta in outcome.deltas if delta.hidden
    ]


def _delta(delta: SequenceDelta) -> wire.SeqDelta:
    return wire.SeqDelta(
        delta.request_id,
        list(delta.token_ids),
        delta.finish,
        None if delta.logprobs is None else list(delta.logprobs),
        delta.hidden,
    )


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


def stats(scheduler: SchedulerStats, loads: npt.NDArray[np.int64] | None) -> wire.Stats:
    """The scheduler's numbers, this process's resident bytes, the experts' [mixtures, experts]."""
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
            prefix_host_blocks=kv.host_blocks,
            prefix_recalled_blocks=kv.recalled_blocks,
            used_checkpoints=kv.used_checkpoints,
            total_checkpoints=kv.total_checkpoints,
            restored_checkpoints=kv.restored_checkpoints,
            preemptions=scheduler.preemptions,
            rss_bytes=resident_bytes() or 0,
            num_experts=0 if loads is None else loads.shape[1],
            expert_loads=b"" if loads is None else loads.astype("<i8").tobytes(),
        )
    )


def _invalid(submit: wire.Submit, detail: str) -> wire.Refused:
    return wire.Refused(submit.request_id, "failed", "InvalidRequest", detail)
