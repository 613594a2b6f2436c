from __future__ import annotations

import pytest

from luce.cli.visible import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, \u00e9\u65e5\U0001f600", "plain text, \u00e9\u65e5\U0001f600"),
        ("a\x01b\x1b[31m\x7f", "a\\x01b\\x1b[31m\\x7f"),
        ("two\nlines\ttab", "two lines tab"),
        ("turned \u202e around", "turned \\u202e around"),
        ("no text: \udcff", "no text: \\udcff"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown
