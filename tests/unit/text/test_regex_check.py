"""Which regular expressions are refused before they are compiled, and which by being compiled."""

from __future__ import annotations

import time

import pytest

from luce.text.regex_check import MAX_CHARS, regex_fault


@pytest.mark.parametrize(
    "pattern",
    [
        r"\S",
        r"^hello\!$",
        r"^[^\p{Cc}]{1,200}$",
        r"\w{1,64}@(?:[a-z]{1,63}\.){1,10}com",
        r"[a-z]{1000000}",
        r"(?:ab{2}){3}",
        r"[]{(]{3}",
        r"(?<year>\d{4})-\d\d",
        "",
    ],
)
def test_can_be_followed(pattern: str) -> None:
    assert regex_fault(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (r"^(?!x)y", "look-around"),
        (r"(?<=x)y", "look-around"),
        (r"\bx", "look-around"),
        (r"(a)\1", "back-references"),
        ("(", "unclosed group"),
        ("a{2,1}", "not a regular expression"),
        ("(a{1,1000}){1,1000}", "multiply"),
        ("((a{1,100}){1,100}){1,100}", "multiply"),
        ("(?:[a-z]{1,400}x){1,400}", "multiply"),
        ("x" * (MAX_CHARS + 1), "more than"),
        ("(" * 4000 + ")" * 4000, "not a regular expression"),
    ],
)
def test_is_refused(pattern: str, says: str) -> None:
    started = time.process_time()
    assert says in (regex_fault(pattern) or "")
    assert time.process_time() - started < 5
