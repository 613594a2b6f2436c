"""What clients say about thinking."""

from __future__ import annotations

from typing import Any

import pytest

from luce.errors import InvalidRequest
from luce.text.reasoning import ReasoningRequest, reasoning_request, template_variables

OFF = ReasoningRequest(False)
ON = ReasoningRequest(True)


def effort(tier: Any, name: str, **fields: Any) -> ReasoningRequest:
    return ReasoningRequest(True, tier, name, **{"has_envelope": True, **fields})


HIGH = effort("high", "high")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ReasoningRequest()),
        ({"default": False}, OFF),
        ({"default": True}, ON),
        # reasoning, then reasoning_effort
        ({"reasoning": {}}, ON),
        ({"reasoning": {"effort": None, "summary": "auto"}}, ON),
        ({"reasoning": {"enabled": False}}, OFF),
        ({"reasoning": {"effort": "none"}}, OFF),
        ({"reasoning": {"effort": "low"}}, effort("low", "low")),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "max"}, effort("low", "low")),
        ({"reasoning_effort": "none", "default": True}, OFF),
        ({"reasoning_effort": "minimal"}, effort("low", "minimal")),
        ({"reasoning_effort": "medium"}, effort("medium", "medium")),
        ({"reasoning_effort": "high"}, HIGH),
        ({"reasoning_effort": "xhigh"}, effort("x-high", "xhigh")),
        ({"reasoning_effort": "x-high"}, effort("x-high", "x-high")),
        ({"reasoning_effort": " MAX "}, effort("max", "max")),
        ({"reasoning_effort": "whatever"}, HIGH),
        # thinking
        ({"thinking": {"type": "enabled"}}, ReasoningRequest(True, has_envelope=True)),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9, "reply_budget": 0}},
            ReasoningRequest(True, None, None, True, 9, 0),
        ),
        ({"thinking": {"type": "adaptive"}}, ON),
        ({"thinking": {"type": "adaptive"}, "reasoning_effort": "high"}, HIGH),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}, "reasoning_effort": "high"}, OFF),
        ({"thinking": {"type": "else"}}, OFF),
        # the template's variables
        ({"chat_template_kwargs": {"enable_thinking": True}}, ON),
        ({"chat_template_kwargs": {"thinking": True}}, ON),
        ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, OFF),
        ({"chat_template_kwargs": {"enable_thinking": "yes"}}, ReasoningRequest()),
        (
            {"chat_template_kwargs": {"reasoning_effort": "low"}},
            effort("low", "low", has_envelope=False),
        ),
        ({"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "high"}, HIGH),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}, "default": True}, OFF),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"}, OFF),
    ],
)
def test_fields(fields: dict[str, Any], expected: ReasoningRequest) -> None:
    assert reasoning_request(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "reply_budget": 1.5}}, "thinking.reply_budget"),
    ],
)
def test_wrong_types_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        reasoning_request(**fields)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("request_", "architecture", "expected"),
    [
        (ReasoningRequest(), "qwen3", {}),
        (OFF, "qwen3", {"enable_thinking": False, "thinking": False}),
        (ON, "qwen3", {"enable_thinking": True, "thinking": True}),
        (effort("x-high", "xhigh"), "qwen3", {"reasoning_effort": "xhigh"}),
        (effort("low", "minimal"), "qwen3", {"reasoning_effort": "low"}),
        (ON, "deepseek4", {"reasoning_effort": "high"}),
        (effort("low", "low"), "deepseek4", {"reasoning_effort": "low"}),
        (effort("medium", "medium"), "deepseek4", {"reasoning_effort": "high"}),
        (effort("x-high", "xhigh"), "deepseek4", {"reasoning_effort": "high"}),
        (effort("x-high", "x-high"), "deepseek4", {"reasoning_effort": "max"}),
        (effort("max", "max"), "deepseek4", {"reasoning_effort": "max"}),
        (OFF, "deepseek4", {"enable_thinking": False, "thinking": False}),
    ],
)
def test_template_variables(
    request_: ReasoningRequest, architecture: str, expected: dict[str, Any]
) -> None:
    toggles = {"enable_thinking": True, "thinking": True} if request_.enabled else {}
    assert template_variables(request_, architecture) == toggles | expected
