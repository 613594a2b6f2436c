"""ToolParser: finds tool calls in a model's text, and gives everything else back as text.

Calls are announced by tags or begin with something only calls begin with (`syntax`). What turns
out to be no call, because it is broken or names no declared tool, is given back as it was. White
space around calls and the tags belong to the calls; between calls and text it is kept.

Text is read once: what was given back is not searched again, except for what lies behind the
place that made it no call. So time is linear in the text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from luce.text.channels import Channel, TextPiece
from luce.text.events import ToolCallDelta, ToolCallStarted
from luce.text.markers import MarkerScanner, marker_set, slices
from luce.text.tools.bare_json import BARE_JSON
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.element import Element, Outcome
from luce.text.tools.json_call import JsonCall
from luce.text.tools.named_call import NamedCall
from luce.text.tools.qwen_xml import slips
from luce.text.tools.syntax import ElementFactory, ToolSyntax, Wrapper


@dataclass(frozen=True, slots=True)
class CallComplete:
    """The call begun last is complete; a call without this was cut off or broken."""


Piece = TextPiece | ToolCallStarted | ToolCallDelta | CallComplete

_SPACE = re.compile(r"\s*")
_BETWEEN_CALLS = re.compile(r"[\s,;\]})`]*")
"""What may stand between the calls of a list, or be too much behind one."""
_NAME_START = re.compile(r"[\w.]")


_NO_WRAPPER = Wrapper("", takes_json=False)


@dataclass(frozen=True, slots=True)
class CallPlaces:
    """Where calls are looked for.

    Attributes:
        takes_bare: a JSON object that begins an answer may be one.
        is_exact: a grammar writes them: none in reasoning, none in a form that is a slip, none
            that has its arguments only.
        comes_first: none behind content.
        must_come: there is nothing but calls.
    """

    takes_bare: bool = True
    is_exact: bool = False
    comes_first: bool = False
    must_come: bool = False

    @classmethod
    def forced(cls, syntax: ToolSyntax, *, comes_first: bool, must_come: bool) -> CallPlaces:
        """Where a grammar in a syntax's form puts them."""
        is_bare = syntax.form is not None and not syntax.form.trigger
        return cls(is_bare, is_exact=True, comes_first=comes_first, must_come=must_come)


_ANYWHERE = CallPlaces()


class _Place(Enum):
    TEXT = auto()
    ANNOUNCED = auto()  # behind a wrapper
    CALL = auto()
    AFTER = auto()  # behind a call


def new_call_id() -> str:
    """An id for a call: `call_` and 24 hexadecimal digits."""
    return f"call_{secrets.token_hex(12)}"


class ToolParser:
    """Reads one answer, fed in any pieces.

    Args:
        syntaxes: the ways of writing calls to look for.
        tools: the tools whose calls are taken.
        is_single: only the first call is taken, and nothing behind it.
        places: where calls are looked for.
        new_id: ids for calls.
    """

    def __init__(
        self,
        syntaxes: Iterable[ToolSyntax],
        tools: DeclaredTools,
        *,
        is_single: bool = False,
        places: CallPlaces = _ANYWHERE,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._is_single = is_single
        self._places = places
        self._wrappers: dict[str, Wrapper] = {}
        self._elements: dict[str, ElementFactory] = {}
        self._closers: set[str] = set()
        for syntax in syntaxes:
            self._wrappers |= {wrapper.opener: wrapper for wrapper in syntax.wrappers}
            self._elements |= syntax.elements
            self._closers |= set(syntax.closers)
        slipped = {} if places.is_exact else slips(tools.names)
        self._elements |= {t: slipped[t] for t in slipped.keys() - self._wrappers.keys()}
        self._scanner = MarkerScanner(
            marker_set(frozenset((*self._wrappers, *self._elements, *self._closers)))
        )
        self._calls = _Calls(tools, new_id)
        self._channel: Channel = "content"
        self._place = _Place.ANNOUNCED
        self._bare = BARE_JSON if places.takes_bare else _NO_WRAPPER
        self._wrapper = self._bare
        self._has_content = False
        self._in_list = False
        self._read_end = 0  # of what is being read; the rest of it is still to come
        self._element: Element | None = None
        self._raw: list[str] = []
        self._gap: list[str] = []  # given back if no call follows
        self._out: list[Piece] = []

    @property
    def must_come(self) -> bool:
        """Whether there is nothing but calls: text is the beginning of a tag."""
        return self._places.must_come

    @property
    def in_call(self) -> bool:
        """Whether what follows belongs to a call, for all that is known."""
        return self._element is not None

    @property
    def is_full(self) -> bool:
        """No more calls are taken: nothing that comes now would be given out."""
        return self._is_single and self._calls.num_begun > 0 and self._element is None

    def feed(self, piece: TextPiece) -> list[Piece]:
        """Take more text; give what is certain by now."""
        if piece.channel != self._channel:
            self._switch(piece.channel)
        for rest in slices(piece.text):
            self._read_end += len(rest)
            while rest and not self.is_full:
                rest = self._step(rest)
        return self._take_out()

    def finish(self, *, is_cut: bool) -> list[Piece]:
        """The text has ended.

        Args:
            is_cut: it was cut off by its length.
        """
        if not self.is_full:
            self._end_channel(is_cut=is_cut)
        return self._take_out()

    def _switch(self, channel: Channel) -> None:
        self._end_channel(is_cut=False)
        self._channel = channel
        is_start = channel == "content" and not self._has_content
        self._place = _Place.ANNOUNCED if is_start else _Place.TEXT
        self._wrapper = self._bare
        self._in_list = False

    @property
    def _is_surely_call(self) -> bool:
        """Whether what is open can be nothing else, because a grammar writes the output."""
        if not self._places.is_exact or self._channel == "reasoning":
            return False
        has_opener = bool(self._wrapper.opener or (self._raw and self._raw[0]))
        is_open = self._place is _Place.AFTER or (self._place is not _Place.TEXT and has_opener)
        return self._places.must_come or is_open

    def _end_channel(self, *, is_cut: bool) -> None:
        if is_cut and self._is_surely_call:
            self._end_call()
            return
        if self._element is not None:
            self._element.finish(is_cut=is_cut)
            self._settle(self._element, "")
        held = self._scanner.flush()
        is_closer = not held or any(text.startswith(held) for text in self._closers)
        if self._place is _Place.AFTER and is_closer:
            self._gap.clear()
        else:
            self._give(held, self._read_end)
        self._give_gap(self._read_end)

    def _end_call(self) -> None:
        """The output was cut off in what is surely a call: markup without one is not shown."""
        if self._element is not None:
            self._element.finish(is_cut=True)
            self._out += self._calls.take()
        self._scanner.flush()
        self._gap.clear()

    # --- reading: each takes text and gives back what is left of it ----------------------

    def _step(self, text: str) -> str:
        if self._element is not None:
            return self._read_call(text, self._element)
        if not self._scanner.is_holding:
            if self._place is _Place.ANNOUNCED:
                return self._read_announced(text)
            if self._place is _Place.AFTER:
                return self._read_after(text)
        return self._read_text(text)

    def _read_text(self, text: str) -> str:
        before, marker, rest = self._scanner.feed(text)
        if before.startswith("[") and self._may_be_list:
            self._in_list = True
            self._gap.append("[")
            return before[1:] + (marker or self._scanner.flush()) + rest
        end = self._read_end - len(rest)
        if before:
            self._give(before, end - len(marker) - self._scanner.num_held)
            self._place = _Place.TEXT
        if marker:
            self._take_marker(marker, end)
        return rest

    def _read_announced(self, text: str) -> str:
        text = self._skip(_SPACE, text)
        if not text:
            return ""
        wrapper = self._wrapper
        if wrapper.takes_json and text[0] == "{":
            self._begin(self._json_call(wrapper))
        elif wrapper.named is not None and _NAME_START.match(text):
            self._begin(NamedCall(self._calls, wrapper.named))
        else:
            return self._read_text(text)
        return text

    @property
    def _may_be_list(self) -> bool:
        """Whether a `[` that is no marker begins a list of calls."""
        return self._place is _Place.ANNOUNCED and self._wrapper.takes_json and not self._in_list

    def _read_after(self, text: str) -> str:
        text = self._skip(_BETWEEN_CALLS, text)
        if not text:
            return ""
        if text[0] == "{" and self._wrapper.takes_json:
            self._begin(self._json_call(self._wrapper))
            return text
        return self._read_text(text)

    def _read_call(self, text: str, element: Element) -> str:
        rest = element.feed(text)
        self._raw.append(text)
        self._settle(element, rest)
        return rest

    def _skip(self, pattern: re.Pattern[str], text: str) -> str:
        found = pattern.match(text)
        skipped = found[0] if found else ""
        if skipped:
            self._gap.append(skipped)
        return text[len(skipped) :]

    def _take_marker(self, marker: str, end: int) -> None:
        if marker in self._closers:
            if self._place is _Place.AFTER:
                self._gap.clear()
                return
        elif self._takes_calls and marker in self._elements:
            if self._channel == "content" or self._place is _Place.ANNOUNCED:
                self._begin(self._elements[marker](self._calls), marker)
                return
        elif self._takes_calls and (
            self._channel == "content" or self._wrappers[marker].in_reasoning
        ):
            self._gap.append(marker)
            self._wrapper = self._wrappers[marker]
            self._place = _Place.ANNOUNCED
            self._in_list = False
            return
        self._give(marker, end)
        self._place = _Place.TEXT

    # --- calls ---------------------------------------------------------------------------

    @property
    def _takes_calls(self) -> bool:
        if self._channel == "reasoning":
            return not self._places.is_exact
        return not (self._places.comes_first and self._has_content)

    def _json_call(self, wrapper: Wrapper) -> JsonCall:
        may_be_arguments = wrapper.is_bare and not self._places.is_exact
        return JsonCall(self._calls, is_bare=wrapper.is_bare, may_be_arguments=may_be_arguments)

    def _begin(self, element: Element, opener: str = "") -> None:
        self._element = element
        self._raw = [opener]
        self._place = _Place.CALL

    def _settle(self, element: Element, rest: str) -> None:
        """Take what the element made of its text."""
        events = self._calls.take()
        if events:
            self._gap.clear()
            self._raw.clear()
            self._out += events
        if element.outcome is Outcome.OPEN:
            if self._calls.has_begun:
                self._raw.clear()
            return
        self._element = None
        if element.outcome is Outcome.REJECTED:
            raw = "".join(self._raw)
            self._give(raw[: len(raw) - len(rest)], self._read_end - len(rest))
            self._place = _Place.TEXT
        else:
            self._calls.close()
            self._place = _Place.AFTER
        self._raw.clear()

    # --- text ----------------------------------------------------------------------------

    def _give(self, text: str, end: int) -> None:
        """Give text out, but for white space at its end, which may belong to a call.

        Args:
            text: the text.
            end: offset behind it in all that was fed.
        """
        shown = text.rstrip()
        space = text[len(shown) :]
        if shown:
            self._give_gap(end - len(text))
            self._out.append(TextPiece(self._channel, shown, end - len(space)))
            self._has_content |= self._channel == "content"
        if space:
            self._gap.append(space)

    def _give_gap(self, end: int) -> None:
        gap = "".join(self._gap)
        self._gap.clear()
        if gap:
            self._out.append(TextPiece(self._channel, gap, end))
            self._has_content |= self._channel == "content" and not gap.isspace()

    def _take_out(self) -> list[Piece]:
        out, self._out = self._out, []
        return out


class _Calls:
    """The calls of one answer, as events; see `CallSink`."""

    def __init__(self, tools: DeclaredTools, new_id: Callable[[], str]) -> None:
        self.tools = tools
        self.has_begun = False
        self._new_id = new_id
        self.num_begun = 0
        self._events: list[Piece] = []

    def begin(self, name: str) -> None:
        self._events.append(ToolCallStarted(self.num_begun, self._new_id(), name))
        self.num_begun += 1
        self.has_begun = True

    def arguments(self, text: str) -> None:
        if text:
            self._events.append(ToolCallDelta(self.num_begun - 1, text))

    def end(self) -> None:
        self._events.append(CallComplete())

    def close(self) -> None:
        """The call is over, complete or not."""
        self.has_begun = False

    def take(self) -> list[Piece]:
        events, self._events = self._events, []
        return events
