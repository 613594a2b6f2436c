"""Rows: what may be looked for at the same place, and what only where a lexeme ended early."""

from __future__ import annotations

import pytest

from luce.text import lark_rows
from luce.text.json_insides import have_common
from luce.text.lark_rows import Rows, UnreadRules


def rows(*terminals: str, **rules: str) -> Rows:
    return Rows(rules, terminals, lambda one, other: have_common(one, other))


def beside(made: Rows) -> dict[str, set[str]]:
    """The lexemes beside each, of all its places."""
    found: dict[str, set[str]] = {}
    for places, others, _ in made.groups():
        for place in places:
            found.setdefault(place.lexeme, set()).update(each.lexeme for each in others)
    return found


def early(made: Rows) -> dict[str, set[str]]:
    return {
        place.lexeme: {each.lexeme for each in others}
        for places, _, others in made.groups()
        for place in places
        if others
    }


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('"a" "b"', {"a": "a", "b": "b"}),
        ('"a" | "b" // "c"', {"a": "ab", "b": "ab"}),
        ('"a"? "b"', {"a": "ab", "b": "ab"}),
        ('["a"] "b" -> name', {"a": "ab", "b": "ab"}),
        ('"a"+ "b"', {"a": "ab", "b": "ab"}),
        ('("a" "b")* "c"', {"a": "ac", "b": "b", "c": "ac"}),
        ('("a" | "b" "c")~2..3 "d"', {"a": "abd", "b": "abd", "c": "c", "d": "abd"}),
        ('"a"{2} "b"', {"a": "ab", "b": "ab"}),
        # The same text leads to both, another one only to its own.
        ('"a" "b" | "a" "c" | "d" "e"', {"a": "ad", "b": "bc", "c": "bc", "d": "ad", "e": "e"}),
    ],
)
def test_what_may_be_open_at_once(body: str, expected: dict[str, str]) -> None:
    found = beside(rows(start=body))
    assert found == {f'"{one}"': {f'"{each}"' for each in all_} for one, all_ in expected.items()}


def test_expressions_that_match_the_same_lead_to_both() -> None:
    assert beside(rows(start='/[ab]/ "c" | /[bd]/ "e" | /f/ "g"'))['"c"'] == {'"c"', '"e"'}


def test_empty_lexemes_are_passed_over() -> None:
    assert beside(rows(start='/a*/ "b"'))['"b"'] == {"/a*/", '"b"'}


def test_rules_end_wherever_they_are_used() -> None:
    found = beside(rows("T", start='"a" r "b" | "c" r T', r='"x" r?'))
    assert found["T"] == {"T", '"b"', '"x"'}
    assert found['"a"'] == {'"a"', '"c"'}


def test_what_is_open_only_where_a_lexeme_ended_early() -> None:
    assert early(rows(start='"a" <(("x" | "y")*)> "b"')) == {'"x"': {'"b"'}, '"y"': {'"b"'}}
    assert early(rows(start='"a" <("x" "y")>* "b"')) == {}


@pytest.mark.parametrize(
    "body", ['"a"))', "%json {}", "r", "T", "<[3]>", " ".join(['"a"'] * (lark_rows.MAX_PLACES + 1))]
)
def test_what_is_not_understood(body: str) -> None:
    with pytest.raises(UnreadRules):
        rows(start=body)


def test_there_must_be_a_start() -> None:
    with pytest.raises(UnreadRules):
        rows(begin='"a"')


def test_no_more_is_tried_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lark_rows, "MAX_TRIED", 2)
    assert rows(start="/a/").places
    with pytest.raises(UnreadRules):
        rows(start="/a/ | /b/ | /c/")
    with pytest.raises(UnreadRules):
        rows(start='"a" "b" "c"').groups()
