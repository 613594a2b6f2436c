"""MarkupGuard: control token texts in user strings never survive in one piece."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.errors import InvalidRequest
from luce.text.markup_guard import MarkupGuard

TEXTS = ("<|im_start|>", "<|im_end|>", "</s>", "[INST]")
GUARD = MarkupGuard(TEXTS)
MARKUP = re.compile("|".join(map(re.escape, TEXTS)))


def shield(value: Any) -> Any:
    return GUARD.shield(value, GUARD.sentinel_for(value))


def test_innocent_values_are_the_same_object() -> None:
    value = [{"content": "a < b and [x]", "n": 1, "none": None}]
    assert GUARD.sentinel_for(value) == ""
    assert shield(value) is value


def test_broken_after_the_first_character() -> None:
    assert shield("a</s>b") == "a<\ufdd0/s>b"


def test_every_string_of_a_value_is_broken() -> None:
    value = {"</s>": ["</s>", ("</s>", 1)], "ok": {"deep": "</s>"}}
    broken = "<\ufdd0/s>"
    assert shield(value) == {broken: [broken, [broken, 1]], "ok": {"deep": broken}}


def test_a_beginning_at_the_end_cannot_be_completed_by_the_template() -> None:
    shielded = shield("x<|im_")
    assert shielded == "x<|im_\ufdd0"
    assert not MARKUP.search(shielded + "end|>")


def test_the_sentinel_is_a_character_that_does_not_occur() -> None:
    assert GUARD.sentinel_for("</s>", "\ufdd0\ufdd1") == "\ufdd2"
    every = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    assert GUARD.sentinel_for("</s>", every) == "\ufffe"


def test_every_noncharacter_at_once_is_refused() -> None:
    every = [chr(code) for code in range(0x110000) if _is_noncharacter(code)]
    assert len(every) == 66
    with pytest.raises(InvalidRequest, match="noncharacter"):
        GUARD.sentinel_for(["</s>", *every])
    assert GUARD.sentinel_for(every) == ""


def _is_noncharacter(code: int) -> bool:
    return 0xFDD0 <= code < 0xFDF0 or code & 0xFFFE == 0xFFFE


def test_without_control_tokens_nothing_is_markup() -> None:
    assert MarkupGuard([]).sentinel_for("</s>") == ""


FRAGMENTS = st.lists(
    st.sampled_from([*TEXTS, "<", "|", "im_end", "|>", "</", "s>", "[", "INST", "]", "a", "\ufdd0"])
).map("".join)


@given(strings=st.lists(FRAGMENTS, min_size=1), joiner=st.sampled_from(["", "\n", " "]))
def test_no_markup_in_any_concatenation_of_user_strings(strings: list[str], joiner: str) -> None:
    sentinel = GUARD.sentinel_for(strings)
    shielded = GUARD.shield(strings, sentinel)
    assert not MARKUP.search(joiner.join(shielded))
    if sentinel:
        assert [text.replace(sentinel, "") for text in shielded] == strings
