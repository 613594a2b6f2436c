"""Sizes and values of others, for people."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import luce
from luce.units import cut, cut_number, format_bytes, parse_bytes, quoted


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (-2048, "-2.0 KiB"),
        (98 * 2**20 + 2**19, "98.5 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (5 * 2**40, "5.0 TiB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("7", 7),
        ("7B", 7),
        ("1KiB", 1024),
        ("512MiB", 512 << 20),
        ("1GiB", 1 << 30),
        ("1.5GiB", 3 << 29),
        ("1.5 gib", 3 << 29),
        ("24G", 24 << 30),
        ("2TB", 2 << 40),
    ],
)
def test_parse(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1.GiB", "1XiB", "1 GiB free", "9" * 20])
def test_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size; write one as 512MiB"):
        parse_bytes(text)


def test_what_is_cut_says_so() -> None:
    assert (cut("ab", 2), cut("abc", 2), cut("", 2)) == ("ab", "ab…", "")
    assert (quoted("it's"), quoted("a\n" + "b" * 99)) == ('"it\'s"', "'a\\n" + "b" * 62 + "…'")
    assert (cut_number(-1.5), cut_number(10**60)) == ("-1.5", "1" + "0" * 23 + "…")


def test_no_message_is_cut_without_a_mark() -> None:
    """Whoever cuts a value inside a message forgets the mark sooner or later."""
    in_braces = re.compile(r"\{[^{}\n]*\[:\w+\](?:!r)?\}")
    root = Path(luce.__file__).parent
    found = [
        f"{path.relative_to(root)}: {match[0]}"
        for path in root.rglob("*.py")
        for match in in_braces.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == ["units.py: {text[:most]}"]
