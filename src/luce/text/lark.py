"""LarkWriter: puts one grammar together, in llguidance's form of Lark.

Text that is a control token in the vocabulary is written as a reference to the token: no other
spelling of it means anything to whoever reads the output. All else is text, to be cut into
tokens as the model likes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

ANY_TEXT = "/(?s:.*)/"

_SPECIAL = frozenset("\\.+*?()|[]{}^$#&-~/")
_WRITTEN = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class LarkWriter:
    """Collects the rules of one grammar.

    Args:
        markup: finds control token texts, as group 1.
        control_id: the id of such a text.
    """

    def __init__(self, markup: re.Pattern[str], control_id: Callable[[str], int | None]) -> None:
        self._markup = markup
        self._control_id = control_id
        self._rules: dict[str, str] = {}

    def rule(self, body: str, options: str = "") -> str:
        """Add a rule; its name. The same body twice is one rule."""
        return self._add(f"{options}: {body}", "r")

    def terminal(self, body: str) -> str:
        """Add a terminal, an expression that is matched as a whole; its name."""
        return self._add(f": {body}", "T")

    def reserve(self) -> str:
        """The name of a rule that is written later, by `define`."""
        name = f"r{len(self._rules)}"
        self._rules[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        """Write a rule whose name was reserved."""
        self._rules[name] = f": {body}"

    def text(self, markup: str) -> str:
        """An expression for a fixed text; empty for none."""
        # Splitting at a group gives text, control text, text, ...
        pieces = self._markup.split(markup)
        parts = [
            f"<[{self._control_id(piece)}]>" if index % 2 else literal(piece)
            for index, piece in enumerate(pieces)
            if piece
        ]
        return " ".join(parts)

    def until(self, close: str, body: str = ANY_TEXT, without: Iterable[str] = ()) -> str:
        """An expression for text that ends at the first `close`, which is part of it.

        Args:
            close: markup.
            body: the text in front of it: what a terminal may be.
            without: further texts that it must not hold.
        """
        before, *rest = self._markup.split(close, maxsplit=1)
        body = self.terminal(f"{body} & {lacking((*without, close))}")
        if not rest:
            return self.terminal(f"{body} {literal(close)}")
        # A control token ends the text by itself, together with what stands in front of the token.
        end = self.terminal(f"{body} {literal(before)}") if before else body
        return f"{end} {self.text(''.join(rest))}"

    def source(self, start: str) -> str:
        """The whole grammar; `start` is the expression for all of the output."""
        rules = (f"{name}{body}\n" for name, body in self._rules.items())
        return f"start: {start}\n" + "".join(rules)

    def _add(self, definition: str, prefix: str) -> str:
        for name, known in self._rules.items():
            if known == definition and name.startswith(prefix):
                return name
        name = f"{prefix}{len(self._rules)}"
        self._rules[name] = definition
        return name


def literal(text: str) -> str:
    """A text, as it is."""
    return json.dumps(text)


def pattern(expression: str, *, is_ascii: bool = False) -> str:
    """A regular expression that stands for all of a text.

    Args:
        expression: in Rust's syntax.
        is_ascii: digits and words are ASCII's, as JSON schemas mean them.
    """
    import llguidance  # Takes 6 MB, which servers without such requests do not need.

    return f"/{llguidance.regex_to_lark(expression, 'dw' if is_ascii else '')}/"


def lacking(texts: Iterable[str]) -> str:
    """Text without any of these in it."""
    alternatives = "|".join(dict.fromkeys(map(escaped, texts)))
    return f"~/(?s:.*)({alternatives})(?s:.*)/"


def escaped(text: str) -> str:
    """A text as part of a regular expression."""
    return "".join(_WRITTEN.get(c, f"\\{c}" if c in _SPECIAL else c) for c in text)
