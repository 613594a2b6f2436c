"""The line that Claude Code adds to its system prompt for its maker."""

from __future__ import annotations

_BILLING_HEADER = "x-anthropic-billing-header:"
"""The line differs from request to request and means nothing to a model, but would spoil every
prefix cache."""


def without_billing(text: str) -> str:
    """A system text without such lines."""
    if _BILLING_HEADER not in text:
        return text
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(_BILLING_HEADER))
