"""A request's sampling parameters for one model: what the client said, else what the model's
files say, else greedy; output clamped to the room its context leaves."""

from __future__ import annotations

from collections.abc import Mapping

from luce.errors import ContextLengthExceeded, InvalidRequest
from luce.listener.ports import Prompt
from luce.protocol.messages import Limits
from luce.protocol.sampling import SamplingParams
from luce.text.call import GenerationCall, SamplingOverrides

_DEFAULTS: dict[str, float] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "rep_window": 256,
}


def check_fits(model: str, prompt: Prompt, limits: Limits) -> None:
    """Check that the prompt and one token of output fit the model's limits.

    Raises:
        ContextLengthExceeded: names both numbers.
    """
    if prompt.num_tokens + 1 > limits.max_seq_tokens:
        raise ContextLengthExceeded(
            f"The prompt has {prompt.num_tokens} tokens; model {model} holds at most "
            f"{limits.max_seq_tokens}, prompt and output together. Shorten it."
        )


def sampling_params(
    call: GenerationCall,
    prompt: Prompt,
    limits: Limits,
    *,
    defaults: Mapping[str, float],
    output_cap: int | None,
    vocab_size: int,
) -> SamplingParams:
    """Resolve the parameters of a prompt that fits.

    Args:
        call: the request.
        prompt: the request prepared for the model.
        limits: what the model holds.
        defaults: the model's own sampling defaults.
        output_cap: most output tokens of a request that names none.
        vocab_size: ids of `logit_bias` must be below it.

    Raises:
        InvalidRequest: `logit_bias` names a token the model does not have.
    """
    bias = call.sampling.logit_bias or {}
    for token_id in bias:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"logit_bias names token {token_id}; the model's tokens are 0 to {vocab_size - 1}.",
                param=f"logit_bias.{token_id}",
            )
    room = limits.max_seq_tokens - prompt.num_tokens
    wanted = call.max_tokens if call.max_tokens is not None else output_cap
    values = {name: _resolved(name, call.sampling, defaults) for name in _DEFAULTS}
    return SamplingParams(
        max_tokens=room if wanted is None else min(wanted, room),
        temperature=values["temperature"],
        top_k=int(values["top_k"]),
        top_p=values["top_p"],
        min_p=values["min_p"],
        repetition_penalty=values["repetition_penalty"],
        frequency_penalty=values["frequency_penalty"],
        presence_penalty=values["presence_penalty"],
        rep_window=int(values["rep_window"]),
        logit_bias=dict(bias),
        seed=call.sampling.seed,
        stop_token_ids=prompt.stop_token_ids,
    )


def sampling_defaults(defaults: Mapping[str, float]) -> dict[str, float]:
    """What holds when the client says nothing.

    Args:
        defaults: the model's own sampling defaults.
    """
    return {name: defaults.get(name, value) for name, value in _DEFAULTS.items()}


def _resolved(name: str, overrides: SamplingOverrides, defaults: Mapping[str, float]) -> float:
    asked: float | None = getattr(overrides, name)
    if asked is not None:
        return asked
    return defaults.get(name, _DEFAULTS[name])
