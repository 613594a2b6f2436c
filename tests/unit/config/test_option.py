"""Options are read from dataclass fields and turn texts and typed values into field values."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luce.config.option import MAX_INTEGER, BadValue, Option, key_of, option, options_of
from luce.config.table import LISTENER_OPTIONS, MODEL_OPTIONS, ROUTING_OPTIONS

ALL = ROUTING_OPTIONS + LISTENER_OPTIONS + MODEL_OPTIONS


def _no_x(text: str) -> None:
    if text == "x":
        raise BadValue("x it may not be")


@dataclass(frozen=True)
class Sample:
    plain: int = 3
    count: int | None = option(None, "--count", "-c", metavar="N", minimum=2, help="How many.")
    where: Path = option(Path("x"), "--the-place", metavar="FILE", help="Where.")
    is_loud: bool = option(False, "--loud", "--noisy", help="Whether to shout.")
    kind: str = option("a", "--kind", choices=("a", "b"), variable="KIND", help="Which.")
    free: str = option("y", "--free", metavar="TEXT", check=_no_x, help="Anything.")
    many: tuple[str, ...] = option((), "--many", metavar="TEXT", check=_no_x, help="Several.")
    key: str = option("k", "--key", metavar="KEY", secret=True, help="Hidden.")


COUNT, WHERE, LOUD, KIND, FREE, MANY, KEY = options_of(Sample)


def test_fields_without_flags_are_no_options() -> None:
    fields = [entry.field for entry in options_of(Sample)]
    assert fields == ["count", "where", "is_loud", "kind", "free", "many", "key"]


def test_kind_and_default_come_from_the_field() -> None:
    assert (COUNT.kind, COUNT.default) == (int, None)
    assert (WHERE.kind, WHERE.default) == (Path, Path("x"))
    assert (LOUD.kind, LOUD.default) == (bool, False)
    assert KIND.variable == "KIND"


def test_spellings() -> None:
    assert COUNT.spellings == ("--count", "-c")
    assert LOUD.spellings == ("--loud", "--noisy", "--no-loud", "--no-noisy")
    assert [entry.key for entry in options_of(Sample)][:3] == ["count", "the-place", "loud"]


@pytest.mark.parametrize("text", ["--max-ctx", "max-ctx", "max_ctx"])
def test_keys(text: str) -> None:
    assert key_of(text) == "max-ctx"


def test_synopsis() -> None:
    assert COUNT.synopsis == "--count, -c N"
    assert LOUD.synopsis == "--loud, --noisy, --no-loud, --no-noisy"
    assert KIND.synopsis == "--kind a|b"
    bare = Option(field="p", flags=("--p",), kind=str, choices=("a", "b"), bare="a", help="")
    assert bare.synopsis == "--p[=a|b]"


def test_texts_become_values() -> None:
    assert COUNT.parse("+7") == 7
    assert WHERE.parse("a/b") == Path("a/b")
    assert KIND.parse("b") == "b"
    assert FREE.parse("z") == "z"
    assert MANY.parse("z") == "z"


@pytest.mark.parametrize(
    ("entry", "text", "problem"),
    [
        (COUNT, "1", "1 is out of range, 2 to 2147483647"),
        (COUNT, "9" * 5000, "9" * 20 + "… is out of range"),
        (COUNT, "", "'' is not a whole number"),
        (COUNT, "1.0", "'1.0' is not a whole number"),
        (WHERE, "", "the value is empty"),
        (WHERE, "a\x00b", "NUL character"),
        (KIND, "c", "'c' is none of a, b"),
        (FREE, "x", "x it may not be"),
        (FREE, "", "the value is empty"),
    ],
)
def test_useless_texts(entry: Option, text: str, problem: str) -> None:
    with pytest.raises(BadValue) as raised:
        entry.parse(text)
    assert problem in str(raised.value)


def test_typed_values_are_accepted() -> None:
    assert COUNT.accept(5) == 5
    assert WHERE.accept("a") == Path("a")
    assert LOUD.accept(True) is True
    assert KIND.accept("b") == "b"
    assert MANY.accept("b") == ("b",)
    assert MANY.accept(["b", "c"]) == ("b", "c")
    assert MANY.accept([]) == ()


def test_what_is_a_list_or_a_secret() -> None:
    assert [entry.flags[0] for entry in options_of(Sample) if entry.is_list] == ["--many"]
    assert MANY.show(("a", "b")) == "a, b"
    assert (MANY.show(()), MANY.default_text) == ("unset", "")
    assert KEY.show("k") == KEY.default_text == "set, not shown"
    assert "'k'" not in repr(Sample())


@pytest.mark.parametrize(
    ("entry", "value", "problem"),
    [
        (COUNT, "5", "expected a whole number, not a text"),
        (COUNT, True, "expected a whole number, not true or false"),
        (COUNT, 5.0, "expected a whole number, not a number with a point"),
        (COUNT, 1, "1 is out of range"),
        (COUNT, -(10**30), "is out of range"),
        (COUNT, datetime.date(2026, 1, 1), "not a date or time"),
        (WHERE, 5, "expected a text, not a whole number"),
        (WHERE, "", "the value is empty"),
        (LOUD, 1, "expected true or false, not a whole number"),
        (LOUD, "true", "expected true or false, not a text"),
        (KIND, ["a"], "expected a text, not a list"),
        (KIND, {}, "expected a text, not a table"),
        (FREE, "x", "x it may not be"),
        (MANY, ["a", "x"], "x it may not be"),
        (MANY, [["a"]], "expected a text, not a list"),
        (MANY, 5, "expected a text, not a whole number"),
    ],
)
def test_typed_values_that_are_not_accepted(entry: Option, value: object, problem: str) -> None:
    with pytest.raises(BadValue) as raised:
        entry.accept(value)
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "unset"), (True, "on"), (False, "off"), (7, "7"), ("Zürich", "Zürich")],
)
def test_values_as_people_read_them(value: object, shown: str) -> None:
    assert FREE.show(value) == shown


@given(st.text())
def test_shown_values_fit_one_line(text: str) -> None:
    assert len(FREE.show(text).splitlines()) <= 1
    FREE.show(text).encode("utf-8")


def test_no_range_is_unbounded_and_every_default_is_a_value() -> None:
    for entry in ALL:
        assert entry.highest <= MAX_INTEGER
        if entry.default is not None:
            assert entry.accept(entry.default) == entry.default


def test_fields_flags_and_variables_are_unique() -> None:
    for names in (
        [entry.field for entry in ALL],
        [flag for entry in ALL for flag in entry.spellings],
        [entry.variable for entry in ALL if entry.variable],
    ):
        assert len(names) == len(set(names))
