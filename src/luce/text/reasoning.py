"""ReasoningRequest: what a client says about thinking, from all the fields clients use for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from luce.errors import InvalidRequest

Effort = Literal["low", "medium", "high", "x-high", "max"]
EFFORTS: tuple[Effort, ...] = ("low", "medium", "high", "x-high", "max")
"""The tiers, least effort first."""

_TIER_OF: Mapping[str, Effort] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "x-high",
    "x-high": "x-high",
    "max": "max",
}
_OFF = "none"

# Names that templates know; OpenAI writes "xhigh".
_RENDERED: Mapping[Effort, str] = {"x-high": "xhigh"}
# DeepSeek's templates know high and max, and read the two spellings of x-high differently.
_DEEPSEEK_EFFORTS: tuple[Effort, ...] = ("low", "high", "max")
_DEEPSEEK_RENDERED = {"medium": "high", "xhigh": "high", "x-high": "max"}


@dataclass(frozen=True, slots=True)
class ReasoningRequest:
    """How a generation should think. The default leaves all to the model's template.

    Attributes:
        enabled: thinking on or off; None = as the template does without being told.
        effort: the tier asked for.
        effort_name: the client's own word for it, which some templates tell apart.
        has_envelope: budgets apply: reasoning is closed by force when its budget is used up.
        budget_tokens: most reasoning tokens; wins over the tier's.
        reply_budget: tokens kept for the reply after a forced close.
    """

    enabled: bool | None = None
    effort: Effort | None = None
    effort_name: str | None = None
    has_envelope: bool = False
    budget_tokens: int | None = None
    reply_budget: int | None = None


def reasoning_request(
    *,
    reasoning: Any = None,
    reasoning_effort: Any = None,
    thinking: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    default: bool | None = None,
) -> ReasoningRequest:
    """Combine the fields of all dialects; None is the same as absent.

    Later ones win: `reasoning` or else `reasoning_effort`, then `thinking`, then the template's
    variables `thinking` and `enable_thinking`. An unknown effort counts as high.

    Args:
        reasoning: OpenAI's object (`effort`) or OpenRouter's (`enabled`).
        reasoning_effort: OpenAI's string.
        thinking: Anthropic's object: `type` (enabled, adaptive, disabled), `budget_tokens`,
            and our `reply_budget`.
        chat_template_kwargs: the template's variables; values of other types than expected mean
            something to the template and nothing here.
        default: what holds when the client says nothing.

    Raises:
        InvalidRequest: a field is of the wrong type; `param` names it.
    """
    wish = _Wish(default)
    if reasoning is not None:
        wish.take_reasoning(_object(reasoning, "reasoning"))
    elif reasoning_effort is not None:
        wish.take_effort(_text(reasoning_effort, "reasoning_effort"), has_envelope=True)
    if thinking is not None:
        wish.take_thinking(_object(thinking, "thinking"))
    wish.take_variables(chat_template_kwargs or {})
    return wish.result()


def template_variables(request: ReasoningRequest, architecture: str) -> dict[str, Any]:
    """The variables that tell a chat template of this; none for what the client left open."""
    variables: dict[str, Any] = {}
    if request.enabled is not None:
        # Qwen's and Gemma's templates read the first, DeepSeek's the second.
        variables = {"enable_thinking": request.enabled, "thinking": request.enabled}
    if architecture.startswith("deepseek") and request.enabled:
        effort = request.effort or "high"
        name = request.effort_name or effort
        variables["reasoning_effort"] = _DEEPSEEK_RENDERED.get(name, effort)
    elif request.effort is not None:
        variables["reasoning_effort"] = _RENDERED.get(request.effort, request.effort)
    return variables


def supported_efforts(architecture: str) -> tuple[Effort, ...]:
    """The tiers that make a difference to a model that reasons."""
    return _DEEPSEEK_EFFORTS if architecture.startswith("deepseek") else EFFORTS


class _Wish:
    """The fields taken so far."""

    def __init__(self, default: bool | None) -> None:
        self._enabled = default
        self._effort: Effort | None = None
        self._effort_name: str | None = None
        self._has_envelope = False
        self._budget_tokens: int | None = None
        self._reply_budget: int | None = None

    def take_reasoning(self, fields: Mapping[str, Any]) -> None:
        effort = fields.get("effort")
        if effort is not None:
            self.take_effort(_text(effort, "reasoning.effort"), has_envelope=True)
        else:
            self._enabled = fields.get("enabled") is not False

    def take_effort(self, name: str, *, has_envelope: bool) -> None:
        word = name.strip().lower()
        self._enabled = word != _OFF
        if self._enabled:
            self._effort = _TIER_OF.get(word, "high")
            self._effort_name = word if word in _TIER_OF else "high"
            self._has_envelope |= has_envelope

    def take_thinking(self, fields: Mapping[str, Any]) -> None:
        kind = _text(fields.get("type"), "thinking.type")
        # "adaptive" leaves how much to the model: on, and no budget of its own.
        self._enabled = kind in ("enabled", "adaptive")
        self._has_envelope = kind == "enabled" or (kind == "adaptive" and self._has_envelope)
        self._budget_tokens = _count(fields.get("budget_tokens"), "thinking.budget_tokens")
        self._reply_budget = _count(fields.get("reply_budget"), "thinking.reply_budget")

    def take_variables(self, variables: Mapping[str, Any]) -> None:
        effort = variables.get("reasoning_effort")
        if isinstance(effort, str) and self._effort is None:
            self.take_effort(effort, has_envelope=False)
        for name in ("thinking", "enable_thinking"):
            if isinstance(variables.get(name), bool):
                self._enabled = variables[name]

    def result(self) -> ReasoningRequest:
        if not self._enabled:
            return ReasoningRequest(self._enabled)
        return ReasoningRequest(
            self._enabled,
            self._effort,
            self._effort_name,
            self._has_envelope,
            self._budget_tokens,
            self._reply_budget,
        )


def _object(value: Any, param: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{param} must be an object.", param=param)
    return value


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{param} must be a string.", param=param)
    return value


def _count(value: Any, param: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(f"{param} must be a whole number, 0 or more.", param=param)
    return value
