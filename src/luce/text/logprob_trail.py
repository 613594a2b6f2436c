"""LogprobTrail: follows tokens through an answer, to report those that its content is made of.

Between a token and what a client sees of it lie tags, calls and white space that are left out,
and text that is held back. The stages say where the pieces they give out were in what they were
fed; this turns that back into places in the whole text, and places into tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from luce.protocol.sampling import TokenLogprobs
from luce.text.channels import TextPiece
from luce.text.events import ContentLogprob, TextDelta

Describe = Callable[[int, TokenLogprobs], ContentLogprob]
"""What is reported of a token: its id and the worker's numbers → the report."""


class LogprobTrail:
    """The tokens of one answer that may be content yet, and the spans of text on their way.

    A token of which a part was shown is decided with its last character. Until then that part is
    held back, so that a token is never reported apart from its text. If a stop string cuts it,
    its text is shown without it.

    Args:
        describe: see `Describe`; called for the tokens of the content only.
        has_parser: pieces go through a tool parser before they are content.
    """

    def __init__(self, describe: Describe, *, has_parser: bool) -> None:
        self._describe = describe
        self._tokens: deque[_Token] = deque()
        self._to_parser = _Spans() if has_parser else None
        self._to_content = _Spans()
        self._num_shown = 0
        self._held = ""
        self._decided: list[_Token] = []

    def add(self, token_id: int, logprobs: TokenLogprobs, start: int, end: int) -> None:
        """A token came; the characters [start, end) of the text have bytes of it."""
        if start < end:  # A token without text is no part of the content.
            self._tokens.append(_Token(token_id, logprobs, start, end))

    def enter_parser(self, piece: TextPiece) -> None:
        """The tool parser is fed this piece of the text."""
        if self._to_parser is not None:
            self._to_parser.add(piece.end - len(piece.text), piece.end)

    def leave_parser(self, piece: TextPiece) -> None:
        """The tool parser, or whatever takes its place, gave this piece out."""
        start, end = piece.end - len(piece.text), piece.end
        spans = [(start, end)] if self._to_parser is None else self._to_parser.take(start, end)
        for span in spans:
            if piece.channel == "content":
                self._to_content.add(*span)
            else:
                self._forget_before(span[1])

    def show(self, text: str) -> TextDelta | None:
        """More content passed the stop strings; what of it can be shown, with its tokens."""
        start, end = self._num_shown, self._num_shown + len(text)
        self._num_shown = end
        shown, at = [], 0
        for first, last in self._to_content.take(start, end):
            part = text[at : at + last - first]
            at += last - first
            shown.append(self._cover(part, first, last))
        return self._delta("".join(shown))

    def settle(self) -> TextDelta | None:
        """Something else than content follows: what is left of begun tokens was left out."""
        self._decided += self._pop_begun()
        return self._delta(self._take_held())

    def cut(self) -> TextDelta | None:
        """A stop string was found; begun tokens reach into it."""
        self._pop_begun()
        return self._delta(self._take_held())

    def _cover(self, text: str, start: int, end: int) -> str:
        """Show the characters [start, end): what of the text, and of what was held, can go."""
        while self._tokens and self._tokens[0].end <= start:
            token = self._tokens.popleft()
            if token.is_begun:  # Its end was left out.
                self._decided.append(token)
        for token in self._tokens:
            if token.start >= end:
                break
            token.is_begun = True
        while self._tokens and self._tokens[0].end <= end:
            self._decided.append(self._tokens.popleft())
        text = self._take_held() + text
        is_open = bool(self._tokens) and self._tokens[0].is_begun
        num_open = end - self._tokens[0].start if is_open else 0
        # A token that began before `start` began what is held, too.
        num_kept = len(text) if num_open > end - start else num_open
        self._held = text[len(text) - num_kept :]
        return text[: len(text) - num_kept]

    def _delta(self, text: str) -> TextDelta | None:
        if not text:
            return None
        decided, self._decided = self._decided, []
        return TextDelta(text, tuple(self._describe(t.token_id, t.logprobs) for t in decided))

    def _take_held(self) -> str:
        held, self._held = self._held, ""
        return held

    def _pop_begun(self) -> list[_Token]:
        begun = []
        while self._tokens and self._tokens[0].is_begun:
            begun.append(self._tokens.popleft())
        return begun

    def _forget_before(self, end: int) -> None:
        """Text up to `end` turned out to be no content, nor will any before it be."""
        while self._tokens and not self._tokens[0].is_begun and self._tokens[0].end <= end:
            self._tokens.popleft()


@dataclass(slots=True)
class _Token:
    """A token and the characters that have bytes of it; `is_begun`: some of them were shown."""

    token_id: int
    logprobs: TokenLogprobs
    start: int
    end: int
    is_begun: bool = False


class _Spans:
    """Where the characters that a stage was fed, and has not given out, are in the whole text."""

    def __init__(self) -> None:
        self._spans: deque[tuple[int, int, int]] = deque()
        self._num_fed = 0

    def add(self, start: int, end: int) -> None:
        """The stage is fed the characters [start, end) of the text."""
        self._spans.append((self._num_fed, start, end))
        self._num_fed += end - start

    def take(self, start: int, end: int) -> list[tuple[int, int]]:
        """The places of what the stage was fed as [start, end). Everything before is forgotten."""
        taken = []
        while self._spans and self._spans[0][0] < end:
            at, first, last = self._spans[0]
            begin, stop = max(start - at, 0), min(end - at, last - first)
            if begin < stop:
                taken.append((first + begin, first + stop))
            if at + last - first > end:
                break
            self._spans.popleft()
        return taken
