"""Request fields that OpenAI's chat and legacy completions share, checked and in our words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects.openai_wire import SamplingFields
from luce.listener.dialects.ranges import MAX_TEMPLATE_BYTES, count32, seed64, top_k32
from luce.text.call import SamplingOverrides
from luce.units import cut_number

MAX_STOP_STRINGS = 16
MAX_LOGIT_BIAS = 100.0

RequestT = TypeVar("RequestT")


def refuse_unserved(request: RequestT, unserved: Mapping[str, Callable[[RequestT], bool]]) -> None:
    """Refuse fields that ask for something not served.

    Args:
        request: a wire struct.
        unserved: names of its fields, each with a test that its value asks for nothing.

    Raises:
        UnsupportedFeature: names the first such field.
    """
    for name, asks_for_nothing in unserved.items():
        if getattr(request, name) is not None and not asks_for_nothing(request):
            raise UnsupportedFeature(f"{name} is not supported here as given.", param=name)


def first_given(*values: Any) -> Any:
    """The first that is not null."""
    return next((value for value in values if value is not None), None)


def refuse_several(request: SamplingFields) -> None:
    """Refuse more than one answer, where an API has only one.

    Raises:
        UnsupportedFeature: names `n`.
    """
    if request.n not in (None, 1):
        raise UnsupportedFeature("n: this API gives one answer only.", param="n")


def output_cap(request: SamplingFields) -> int | None:
    """Most output tokens, by whichever of its names."""
    cap: int | None = first_given(
        request.max_tokens, request.max_output_tokens, request.max_completion_tokens
    )
    return cap


def includes_usage(request: SamplingFields) -> bool:
    """Whether a stream should end with usage."""
    options = request.stream_options
    return bool(options and options.include_usage)


def sampling_overrides(
    request: SamplingFields, max_tokens: int | None, logprobs: int | None = None
) -> SamplingOverrides:
    """The sampling fields, their ranges checked before.

    Args:
        request: the request.
        max_tokens: most output tokens, if it is known.
        logprobs: how many of the likeliest tokens to report; None: no report.

    Raises:
        InvalidRequest: a bias is out of range, or the fewest output tokens are above the most.
    """
    return SamplingOverrides(
        temperature=request.temperature,
        top_k=top_k32(request.top_k),
        top_p=request.top_p,
        min_p=request.min_p,
        repetition_penalty=first_given(request.repetition_penalty, request.rep_pen),
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        rep_window=None if request.rep_window is None else count32(request.rep_window),
        logit_bias=_checked_bias(request.logit_bias),
        seed=seed64(request.seed),
        ignore_eos=bool(request.ignore_eos),
        min_tokens=_min_tokens(request.min_tokens or 0, max_tokens),
        logprobs=logprobs,
    )


def stop_strings(request: SamplingFields, param: str = "stop") -> tuple[str, ...]:
    """Stop strings of both fields, empty ones left out.

    Raises:
        InvalidRequest: there are too many; names `param`.
    """
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    merged = tuple(dict.fromkeys(text for text in [*stop, *(request.stop_sequences or ())] if text))
    if len(merged) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"{param} may have at most {MAX_STOP_STRINGS} strings, not {len(merged)}.", param=param
        )
    return merged


def template_variables(given: dict[str, Any] | None) -> dict[str, Any]:
    """The client's own variables for the chat template.

    Raises:
        InvalidRequest: they are too large, or nested too deeply.
    """
    name = "chat_template_kwargs"
    try:
        size = len(msgspec.json.encode(given)) if given else 0
    except RecursionError as error:
        raise InvalidRequest(f"{name} is nested too deeply.", param=name) from error
    if size > MAX_TEMPLATE_BYTES:
        raise InvalidRequest(
            f"{name} may have at most {MAX_TEMPLATE_BYTES} bytes, not {size}.", param=name
        )
    return given or {}


def _min_tokens(fewest: int, max_tokens: int | None) -> int:
    if max_tokens is not None and fewest > max_tokens:
        raise InvalidRequest(
            f"min_tokens must be at most max_tokens, {max_tokens}, not {cut_number(fewest)}.",
            param="min_tokens",
        )
    return count32(fewest)


def _checked_bias(bias: dict[int, float] | None) -> dict[int, float] | None:
    for token_id, value in (bias or {}).items():
        if not abs(value) <= MAX_LOGIT_BIAS:
            param = f"logit_bias.{cut_number(token_id)}"
            raise InvalidRequest(
                f"{param} must be between -100 and 100, not {value:g}.", param=param
            )
    return bias or None
