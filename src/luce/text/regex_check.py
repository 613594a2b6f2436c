"""Which regular expressions output can be held to.

The syntax is Rust's: no look-around, no back-references. An expression is bounded before it is
compiled, because counted repetitions inside each other multiply and the automaton is built while
the model writes.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from luce.units import cut

MAX_CHARS = 8_192
MAX_WEIGHT = 100_000
"""Characters of an expression whose counted repetitions of groups are written out."""

_COUNT = re.compile(r"\{([0-9]+)(,?)([0-9]*)\}")
_CLASS = re.compile(r"\[\^?\]?(?:[^\]\\]|\\.)*\]", re.DOTALL)


@lru_cache(maxsize=1024)
def regex_fault(pattern: str) -> str | None:
    """Why output cannot be held to an expression; None if it can.

    The clause has no full stop and names no place.
    """
    if len(pattern) > MAX_CHARS:
        return f"a regular expression of more than {MAX_CHARS} characters"
    if _weight(pattern) > MAX_WEIGHT:
        return "repetitions inside each other that multiply to more than can be followed"
    schema = json.dumps({"type": "string", "pattern": pattern})
    import llguidance  # Takes 6 MB, which servers without such requests do not need.

    fault = llguidance.LLMatcher.validate_grammar(
        llguidance.LLMatcher.grammar_from_lark(f"start: %json {schema}")
    )
    return _reason(fault) if fault else None


def _weight(pattern: str) -> int:
    """How long the expression is when repetitions of groups are written out, roughly.

    Repetitions of one character outside groups are counted by the automaton and cost nothing.
    """
    totals, last, position = [0], 0, 0
    while position < len(pattern):
        character = pattern[position]
        count = _COUNT.match(pattern, position)
        step = 1
        if count is not None:
            times = max(int(count[3][:9] or count[1][:9]), 1)
            if last > 1 or len(totals) > 1:
                totals[-1] += last * (times - 1)
                last *= times
            step = len(count[0])
        elif character == "(":
            totals.append(0)
        elif character == ")" and len(totals) > 1:
            last = max(totals.pop(), 1)
            totals[-1] += last
        else:
            found = _CLASS.match(pattern, position)
            step = len(found[0]) if found else 2 if character == "\\" else 1
            last = 1
            totals[-1] += last
        position += step
    return sum(totals)


def _reason(fault: str) -> str:
    """The compiler's words without the grammar around the expression."""
    if "look-around" in fault or "lookarounds" in fault:
        return "look-around and word borders are not supported"
    if "backreferences" in fault:
        return "back-references are not supported"
    found = re.search(r"^error: (.*)$", fault, re.MULTILINE)
    return (
        f"not a regular expression that can be followed: {cut(found[1], 200)}"
        if found
        else ("not a regular expression that can be followed")
    )
