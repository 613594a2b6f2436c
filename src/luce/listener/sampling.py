"""A request's sampling parameters for one model: what the client said, else what the model's
card and files say, else greedy; output clamped to the room its context leaves."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from luce.errors import ContextLengthExceeded, InvalidRequest
from luce.listener.ports import Prompt
from luce.protocol.messages import Limits
from luce.protocol.sampling import ReasoningBudget, SamplingParams
from luce.text.budgets import BudgetEnvelope
from luce.text.call import GenerationCall, SamplingOverrides
from luce.units import cut_number

log = logging.getLogger(__name__)

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


def check_fits(model: str, prompt: Prompt, max_seq_tokens: int) -> None:
    """Check that the prompt and one token of output fit the longest sequence a model holds.

    Raises:
        ContextLengthExceeded: names both numbers.
    """
    if prompt.num_tokens + 1 > max_seq_tokens:
        raise ContextLengthExceeded(
            f"The prompt has {prompt.num_tokens} tokens; model {model} holds at most "
            f"{max_seq_tokens}, prompt and output together. Shorten it."
        )


def sampling_params(
    call: GenerationCall,
    prompt: Prompt,
    limits: Limits,
    *,
    defaults: Mapping[str, float],
    budgets: BudgetEnvelope,
    vocab_size: int,
) -> SamplingParams:
    """Resolve the parameters of a prompt that fits.

    Budgets that leave a request no output give it `max_tokens` 0, which no worker must see.

    Args:
        call: the request.
        prompt: the request prepared for the model.
        limits: what the model holds.
        defaults: the model's own sampling defaults.
        budgets: the model's; they say how much a request gets that asks for none, too.
        vocab_size: ids of `logit_bias` must be below it.

    Raises:
        InvalidRequest: `logit_bias` names a token the model does not have, or `min_tokens` is
            more than a reasoning budget leaves.
    """
    if call.hidden_read is not None:
        return SamplingParams(max_tokens=1, hidden=call.hidden_read)
    bias = call.sampling.logit_bias or {}
    for token_id in bias:
        if not 0 <= token_id < vocab_size:
            param = f"logit_bias.{cut_number(token_id)}"
            raise InvalidRequest(
                f"{param}: there is no such token; the model's are 0 to {vocab_size - 1}.",
                param=param,
            )
    room = limits.max_seq_tokens - prompt.num_tokens
    wanted = budgets.default_max_tokens if call.max_tokens is None else call.max_tokens
    max_tokens, reasoning = _with_budget(call, prompt, budgets, min(wanted, room))
    values = {name: _resolved(name, call.sampling, defaults) for name in _DEFAULTS}
    return SamplingParams(
        max_tokens=max_tokens,
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
        min_tokens=call.sampling.min_tokens,
        logprobs=call.sampling.logprobs,
        grammar=prompt.grammar,
        reasoning=reasoning,
    )


def _with_budget(
    call: GenerationCall, prompt: Prompt, budgets: BudgetEnvelope, max_output: int
) -> tuple[int, ReasoningBudget | None]:
    """Most tokens of the whole output, and when its reasoning is closed."""
    allotment = None
    if call.reasoning is not None and prompt.close is not None:
        allotment = budgets.allot(call.reasoning, max_output)
    if allotment is None or prompt.close is None:
        return max_output, None
    if allotment.max_tokens < call.sampling.min_tokens <= max_output:
        raise InvalidRequest(
            f"min_tokens is {call.sampling.min_tokens}, and the budgets of thinking and reply "
            f"leave {allotment.max_tokens} tokens for the whole output. Ask for less, or for a "
            "larger budget.",
            param="min_tokens",
        )
    log.debug(
        "reasoning budget",
        extra={
            "effort": call.reasoning.effort if call.reasoning else None,
            "asked_tokens": call.reasoning.budget_tokens if call.reasoning else None,
            "reasoning_tokens": allotment.reasoning_tokens,
            "max_tokens": allotment.max_tokens,
        },
    )
    return allotment.max_tokens, prompt.close.after(allotment.reasoning_tokens)


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
