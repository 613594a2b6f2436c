"""Sizes for people."""

from __future__ import annotations

import pytest

from luce.units import format_bytes, parse_bytes


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
