"""MarkerScanner: markers in pieces of text."""

from __future__ import annotations

import pytest

from luce.text.markers import MarkerScanner, MarkerSet, marker_set, slices


def scan(markers: tuple[str, ...], *texts: str) -> list[str]:
    """What is found, markers in angle quotes, and at the end what was held back."""
    scanner = MarkerScanner(MarkerSet(markers))
    found: list[str] = []
    for text in texts:
        rest = text
        while rest:
            before, marker, rest = scanner.feed(rest)
            found += [before] if before else []
            found += [f"«{marker}»"] if marker else []
    held = scanner.flush()
    return [*found, f"held:{held}"] if held else found


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("a<x>b<y>",), ["a", "«<x>»", "b", "«<y>»"]),
        (("a<", "x", ">b"), ["a", "«<x>»", "b"]),
        (("a<", "z>"), ["a", "<z>"]),
        (("<<x>",), ["<", "«<x>»"]),
        (("<", "<", "x>"), ["<", "«<x>»"]),
        (("a<x",), ["a", "held:<x"]),
        (("",), []),
    ],
)
def test_markers_over_pieces(texts: tuple[str, ...], expected: list[str]) -> None:
    assert scan(("<x>", "<y>"), *texts) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("<a>b\n",), ["«<a>b\n»"]),
        (("<a>", "b", "\n"), ["«<a>b\n»"]),
        (("<a>", "c"), ["«<a>»", "c"]),
        (("<a>b", "c"), ["«<a>»", "bc"]),
        (("<a>",), ["held:<a>"]),
    ],
)
def test_the_longest_marker_wins(texts: tuple[str, ...], expected: list[str]) -> None:
    assert scan(("<a>", "<a>b\n"), *texts) == expected


def test_without_markers_all_is_text() -> None:
    assert scan((), "<a>", "b") == ["<a>", "b"]


def test_whether_it_holds() -> None:
    scanner = MarkerScanner(MarkerSet(("<x>",)))
    scanner.feed("a<")
    assert scanner.is_holding
    scanner.feed("b")
    assert not scanner.is_holding


def test_sets_are_kept() -> None:
    assert marker_set(frozenset("ab")) is marker_set(frozenset("ba"))


def test_slices_are_the_text() -> None:
    text = "x" * 10_000
    pieces = list(slices(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) < 5000
    assert list(slices("")) == []
