"""Channels: which part of a model's text is reasoning and which is for the reader.

A model marks its reasoning with tags that its chat template knows. The tags are never shown.
White space that belongs to the tags is taken away with them: line ends behind them, and all of
it at the end of a reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from luce.text.markers import MarkerScanner, marker_set, slices

Channel = Literal["reasoning", "content"]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Some text and where it belongs; never empty.

    Attributes:
        end: offset behind its last character in all that was fed to who gave it, where it stands
            in one piece.
    """

    channel: Channel
    text: str
    end: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """The tags around reasoning.

    Attributes:
        opens: what begins it, in any of these forms.
        close: what ends it, and what a forced close writes.
        is_inline: it may begin in the middle of a line. Tags that readers write about, too,
            begin reasoning only where nothing else is on their line.
    """

    opens: tuple[str, ...]
    close: str
    is_inline: bool = False

    @property
    def opening(self) -> str:
        """The form that all of them begin with: what a grammar and a budget look for."""
        return min(self.opens, key=len)

    @property
    def tags(self) -> tuple[str, ...]:
        """All texts that are tags."""
        return (*self.opens, self.close)


THINK = ChannelSpec(("<think>",), "</think>")
GEMMA = ChannelSpec(("<|channel>thought\n", "<|channel>"), "<channel|>", is_inline=True)
MISTRAL = ChannelSpec(("[THINK]",), "[/THINK]", is_inline=True)
SEED = ChannelSpec(("<seed:think>",), "</seed:think>")

CHANNEL_SPECS = (GEMMA, MISTRAL, SEED, THINK)
"""The kinds we know, in the order they are looked for."""


def find_channels(template: str) -> ChannelSpec | None:
    """The tags a model uses: the first kind of which its chat template has one.

    The template decides, not the vocabulary: models that were never taught to reason share
    their vocabulary, tags included, with others that were.

    Args:
        template: the Jinja source.
    """
    for spec in CHANNEL_SPECS:
        if any(tag in template for tag in spec.tags):
            return spec
    return None


def ends_in_reasoning(spec: ChannelSpec, prompt: str) -> bool:
    """Whether the answer to a rendered prompt begins inside reasoning that the prompt opens."""
    end = prompt.rstrip()
    return any(end.endswith(tag.rstrip()) for tag in spec.opens)


class ChannelSplitter:
    """Splits one answer, fed in any pieces.

    In reasoning the opening tag means nothing, and at its beginning it is left out; in content
    the closing tag is left out.

    Args:
        spec: the model's tags.
        in_reasoning: the prompt ends in an open tag.
        is_verbatim: asked before text is judged, about all text given out so far: whether what
            follows is inside a tool call. There, white space is kept, and in content tags are
            text.
        reasons_once: reasoning comes first or not at all: behind it, and behind any content,
            tags are text.
    """

    def __init__(
        self,
        spec: ChannelSpec,
        *,
        in_reasoning: bool,
        is_verbatim: Callable[[], bool],
        reasons_once: bool = False,
    ) -> None:
        self._spec = spec
        self._reasons_once = reasons_once
        self._is_answering = False
        self._is_verbatim = is_verbatim
        self._scanner = MarkerScanner(marker_set(frozenset(spec.tags)))
        self.in_reasoning = in_reasoning
        self._is_first = in_reasoning  # nothing but white space since the last tag
        self._is_blank_line = True
        self._space: list[TextPiece] = []
        self._end = 0  # of what the scanner gave

    def feed(self, text: str) -> Iterator[TextPiece]:
        """Take more text. Each piece must be worked off before the next is asked for."""
        for rest in slices(text):
            while rest:
                before, tag, rest = self._scanner.feed(rest)
                self._end += len(before)
                yield from self._give(before)
                self._end += len(tag)
                if tag:
                    yield from self._take_tag(tag)

    def flush(self, *, hides_half_tag: bool = False) -> Iterator[TextPiece]:
        """The text has ended: what was held back.

        Args:
            hides_half_tag: in reasoning, the beginning of its closing tag was one.
        """
        held = self._scanner.flush()
        if hides_half_tag and self.in_reasoning and self._spec.close.startswith(held):
            return
        self._end += len(held)
        if held in self._spec.tags:
            yield from self._take_tag(held)
        else:
            yield from self._give(held)
        if self._space and self._is_verbatim():
            yield from self._take_space()

    @property
    def _channel(self) -> Channel:
        return "reasoning" if self.in_reasoning else "content"

    def _take_tag(self, tag: str) -> Iterator[TextPiece]:
        is_close = tag == self._spec.close
        if self.in_reasoning:
            if is_close:
                self._enter(reasoning=False)
            elif not self._is_first:
                yield from self._give(tag)
        elif self._is_verbatim() or (self._reasons_once and self._is_answering):
            yield from self._give(tag)
        elif not is_close:
            if self._spec.is_inline or self._is_blank_line:
                self._enter(reasoning=True)
            else:
                yield from self._give(tag)

    def _enter(self, *, reasoning: bool) -> None:
        self.in_reasoning = reasoning
        self._is_answering = not reasoning
        self._is_first = True
        self._is_blank_line = True
        self._space.clear()

    def _give(self, text: str) -> Iterator[TextPiece]:
        """Give out text that ends where the scanner is."""
        if not text:
            return
        self._note_line(text)
        self._is_answering |= not (self.in_reasoning or text.isspace())
        if not (self.in_reasoning or self._is_first):
            yield TextPiece(self._channel, text, self._end)
            return
        shown = text.rstrip()
        space = text[len(shown) :]
        if shown:
            yield from self._give_part(TextPiece(self._channel, shown, self._end - len(space)))
        if space:  # By now it may be inside a call, or no longer.
            yield from self._give_part(TextPiece(self._channel, space, self._end))

    def _give_part(self, piece: TextPiece) -> Iterator[TextPiece]:
        if self._is_verbatim():
            yield from self._take_space()
            yield piece
        elif not (self.in_reasoning or self._is_first):
            yield piece
        elif piece.text.isspace():
            self._space.append(piece)
        else:
            yield from self._without_first_lines([*self._take_space(), piece])

    def _without_first_lines(self, pieces: Iterable[TextPiece]) -> Iterator[TextPiece]:
        """The pieces without line ends at the beginning of their channel."""
        for piece in pieces:
            if not self._is_first:
                yield piece
                continue
            text = piece.text.lstrip("\r\n")
            if text:
                self._is_first = False
                yield TextPiece(piece.channel, text, piece.end)

    def _take_space(self) -> list[TextPiece]:
        space, self._space = self._space, []
        return space

    def _note_line(self, text: str) -> None:
        line = text[text.rfind("\n") + 1 :]
        is_blank = not line or line.isspace()
        self._is_blank_line = is_blank and (self._is_blank_line or len(line) < len(text))
