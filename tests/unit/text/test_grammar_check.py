"""GrammarCheck: says why a grammar cannot be followed, once."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import pytest

from luce.text import grammar_check
from luce.text.grammar_check import GrammarCheck
from luce.text.json_grammar import json_rule, read_schema
from luce.text.vocabulary import TokenVocabulary

TOKENS = [*(bytes([byte]) for byte in range(256)), b"<|end|>"]


def vocabulary() -> TokenVocabulary:
    return TokenVocabulary(TOKENS, (256,), (256,))


def of_schema(schema: dict[str, Any]) -> str:
    return f"start: {json_rule(read_schema(schema))}\n"


@pytest.fixture
def check() -> GrammarCheck:
    return GrammarCheck(vocabulary)


@pytest.mark.parametrize(
    "lark", ['start: "a"', "start: <[256]>", "start: <|end|>", 'start: %json {"type": "null"}']
)
def test_can_be_followed(check: GrammarCheck, lark: str) -> None:
    assert check.fault(lark) is None


@pytest.mark.parametrize(
    ("lark", "says"),
    [
        ("start: missing", "missing"),
        ("start: <|unheard|>", r'^unknown special token: "<\|unheard\|>"$'),
        ("start: <[257]>", "257"),
        ("start: start", "^nothing at all is valid$"),
        (r"start: /[^\s\S]/", "^nothing at all is valid$"),
        ('start: %json {"type": "nonsense"}', "^Invalid type: nonsense$"),
        ("start: " + "(" * 5000 + '"a"' + ")" * 5000, "nested"),
        ("nothing", "."),
        ("start: A\nA: " + " & ".join(f"/.*a{i}.*b/" for i in range(14)), "^it is too large"),
        ("start: /(?=look)/", "look"),
        (
            'start: %json {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}',
            "^the members of a oneOf are not clearly apart",
        ),
    ],
)
def test_says_why_in_one_line_and_in_our_words(check: GrammarCheck, lark: str, says: str) -> None:
    fault = check.fault(lark)
    assert fault is not None
    assert re.search(says, fault), fault
    assert "\n" not in fault
    assert len(fault) <= 300
    assert not re.search("NoExtension|coerce_one_of|following special|:$", fault)


@pytest.mark.parametrize(
    ("schema", "is_followed"),
    [
        ({"enum": [{"a": i} for i in range(3_000)]}, True),
        ({"enum": [{"a": i} for i in range(6_000)]}, False),
        ({"anyOf": [{"properties": {f"p{i}": {"const": i}}} for i in range(300)]}, True),
        (
            {
                "anyOf": [
                    {"type": "object", "properties": {f"p{i}": {"const": i}, "z": {}}}
                    for i in range(2_400)
                ]
            },
            False,
        ),
        (
            {"type": "array", "items": {"enum": [{"a": i} for i in range(6_000)]}, "minItems": 1},
            False,
        ),
        ({"properties": {f"p{i}": {"type": "integer"} for i in range(300)}}, True),
    ],
    ids=["enum", "large enum", "anyOf", "large anyOf", "large items", "properties"],
)
def test_what_would_break_behind_its_first_token_is_refused(
    check: GrammarCheck, schema: dict[str, Any], is_followed: bool
) -> None:
    fault = check.fault(of_schema(schema))
    assert (fault is None) is is_followed, fault
    if fault is not None:
        assert "too much open at one place" in fault


def test_the_answer_is_looked_for_behind_what_leads_to_it(check: GrammarCheck) -> None:
    schema = {"enum": [{"a": i} for i in range(6_000)]}
    lark = f'start: /x*/ "!" answer\nanswer: {json_rule(read_schema(schema))}\n'
    assert check.try_once(lark) is None
    assert check.try_once(lark, list(b"xx!")) is not None
    assert check.try_once(lark, list(b"other")) is None


def test_the_vocabulary_is_listed_once_and_late() -> None:
    listed = []

    def listing() -> TokenVocabulary:
        listed.append(1)
        time.sleep(0.02)
        return vocabulary()

    check = GrammarCheck(listing)
    assert not listed
    threads = [
        threading.Thread(target=check.fault, args=(f'start: "{number}"',)) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert listed == [1]


def counted(check: GrammarCheck, monkeypatch: pytest.MonkeyPatch, pause_s: float = 0) -> list[str]:
    """Grammars as they are tried."""
    tried: list[str] = []
    real = check.try_once

    def counting(lark: str, lead: Any = ()) -> str | None:
        tried.append(lark)
        time.sleep(pause_s)
        return real(lark, lead)

    monkeypatch.setattr(check, "try_once", counting)
    return tried


def test_verdicts_are_kept_but_not_all(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "MAX_KEPT", 2)
    tried = counted(check, monkeypatch)
    grammars = [f'start: "{name}"' for name in "ab"]
    for lark in (*grammars, grammars[0], 'start: "c"', grammars[0], grammars[1]):
        assert check.fault(lark) is None
    assert tried == [*grammars, 'start: "c"', grammars[1]]


def test_one_grammar_is_tried_once_at_a_time(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = counted(check, monkeypatch, pause_s=0.1)
    found: list[str | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(check.fault("start: missing")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tried == ["start: missing"]
    assert found == ['unknown name: "missing"'] * 4


def test_a_failure_of_the_vocabulary_is_not_kept() -> None:
    failures = [OSError("once")]

    def listing() -> TokenVocabulary:
        if failures:
            raise failures.pop()
        return vocabulary()

    check = GrammarCheck(listing)
    with pytest.raises(OSError, match="once"):
        check.fault('start: "a"')
    assert check.fault('start: "a"') is None


def test_a_model_may_have_no_end_token() -> None:
    check = GrammarCheck(lambda: TokenVocabulary(TOKENS[:256], (), ()))
    assert check.fault('start: "a"') is None
