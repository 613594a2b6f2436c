"""Fields that no API serves, or that only another API serves: refused, not dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

UNSERVED_ANYWHERE: dict[str, Callable[[Any], bool]] = dict.fromkeys(
    (
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        *("structured_outputs", "ebnf", "prefix_cache"),
    ),
    lambda _request: False,
)
"""Fields of other local servers: an answer of just any form would look like support."""


def _asks_for_no_format(name: str, key: str | None = None) -> Callable[[Any], bool]:
    """Whether a foreign field, or a key of it, says no more than that text is wanted."""

    def test(request: Any) -> bool:
        given = getattr(request, name)
        if key is not None:
            given = given.get(key) if isinstance(given, dict) else None
        return given is None or given == {"type": "text"}

    return test


FORMATS_ELSEWHERE: dict[str, Callable[[Any], bool]] = {
    "response_format": _asks_for_no_format("response_format"),
    "text": _asks_for_no_format("text", "format"),
    "output_config": _asks_for_no_format("output_config", "format"),
    "output_format": _asks_for_no_format("output_format"),
}
"""What the APIs call the format of an answer: refused where another name is served."""


def formats_but(*served: str) -> dict[str, Callable[[Any], bool]]:
    """`FORMATS_ELSEWHERE` without the names an API serves."""
    return {name: test for name, test in FORMATS_ELSEWHERE.items() if name not in served}


LOGPROBS_ELSEWHERE: dict[str, Callable[[Any], bool]] = {
    "logprobs": lambda request: request.logprobs is False,
    "top_logprobs": lambda request: request.top_logprobs == 0,
}
"""What chat calls log probabilities, where they are not reported so."""
