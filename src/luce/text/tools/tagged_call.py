"""A call in tags, one for each parameter: `<function=f><parameter=k>v</parameter></function>`.

Closing tags may be missing. A closing tag of the call inside a parameter is part of its value if
the parameter is closed later, and otherwise the end of both. Arguments may be one JSON object
instead, in whose strings no tag means anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from luce.text.markers import MarkerScanner, MarkerSet
from luce.text.tools.element import CallSink, Outcome
from luce.text.tools.json_stream import JsonStream
from luce.text.tools.pairs import CallPairs

MAX_HEAD_CHARS = 512
"""Longest opening tag, and so the longest name."""

_PYTHON_CALL = re.compile(r"\s*([\w.:\-]+)\s*(\(.*\))\s*", re.DOTALL)
_NAME_ATTRIBUTE = re.compile(r"""\b(?:name|tool)\s*=\s*["']([^"']*)["']""")
_STRING_ATTRIBUTE = re.compile(r"""\bstring\s*=\s*["']([^"']*)["']""")


@dataclass(frozen=True, slots=True)
class TagForm:
    """The tags of one syntax.

    Attributes:
        parameter_open: beginning of a parameter's opening tag, up to its name.
        parameter_close: its closing tag.
        call_close: closing tag of the call.
        outer: tags that end the call because something around it ends or another call begins.
        has_attributes: names stand in attributes: `name="f"`.
        head_ends: what ends the call's opening tag.
    """

    parameter_open: str
    parameter_close: str
    call_close: str
    outer: tuple[str, ...]
    has_attributes: bool = False
    head_ends: tuple[str, ...] = (">",)


@lru_cache(maxsize=32)
def _marker_sets(form: TagForm) -> tuple[MarkerSet, MarkerSet, MarkerSet]:
    """What to look for in the call's opening tag, in a parameter's, and behind those."""
    tags = (form.parameter_open, form.parameter_close, form.call_close, *form.outer)
    return MarkerSet((*form.head_ends, form.parameter_open)), MarkerSet((">",)), MarkerSet(tags)


class _Place(Enum):
    HEAD = auto()  # in the call's opening tag
    LEAD = auto()  # behind it, where only a parameter may follow
    BODY = auto()  # between parameters
    KEY = auto()  # in a parameter's opening tag
    VALUE = auto()


class TaggedCall:
    """Reads one call, from behind `<function=` or the like.

    Args:
        name: the tool, where the opening tag is read already; then a parameter must follow.
    """

    def __init__(self, sink: CallSink, form: TagForm, name: str | None = None) -> None:
        self.outcome = Outcome.OPEN
        self._sink = sink
        self._form = form
        self._pairs = CallPairs(sink, name) if name is not None else None
        self._place = _Place.HEAD if name is None else _Place.LEAD
        heads, keys, tags = map(MarkerScanner, _marker_sets(form))
        self._scanners = {_Place.HEAD: heads, _Place.KEY: keys}
        self._tags = tags
        self._lead = ""
        self._text: list[str] = []
        self._num_chars = 0
        self._num_parameters = 0
        self._key = ""
        self._is_json: bool | None = None
        self._possible_end: int | None = None
        self._object: JsonStream | None = JsonStream()
        self._object_text: list[str] = []

    def feed(self, text: str) -> str:
        """See `Element.feed`."""
        while text and self.outcome is Outcome.OPEN:
            if self._place is _Place.LEAD:
                text = self._read_lead(text)
            elif self._place in self._scanners:
                text = self._read_head(text, self._scanners[self._place])
            elif self._place is _Place.BODY and self._object is not None:
                text = self._read_object(text, self._object)
            else:
                text = self._read_body(text)
        return text

    def finish(self, *, is_cut: bool) -> None:
        """See `Element.finish`."""
        if self.outcome is not Outcome.OPEN:
            return
        if self._pairs is None or self._place is _Place.LEAD:
            self.outcome = Outcome.REJECTED
            return
        if not is_cut:
            self._add("".join(self._object_text))
            self._add(self._tags.flush())
            self._end_call()
            return
        self.outcome = Outcome.DONE
        if self._place is _Place.VALUE:
            self._pairs.send_beginning(self._key, "".join(self._text))
        else:
            self._pairs.send_beginning()

    # --- reading: each takes text and gives back what is left of it ----------------------

    def _read_lead(self, text: str) -> str:
        lead = (self._lead + text).lstrip()
        opening = self._form.parameter_open
        if lead.startswith(opening):
            self._enter(_Place.KEY)
            return lead[len(opening) :]
        if opening.startswith(lead):
            self._lead = lead
            return ""
        self.outcome = Outcome.REJECTED
        return lead

    def _read_head(self, text: str, scanner: MarkerScanner) -> str:
        before, end, rest = scanner.feed(text)
        self._add(before)
        excess = self._num_chars - MAX_HEAD_CHARS
        if excess > 0:
            self.outcome = Outcome.REJECTED
            return before[-excess:] + (end or scanner.flush()) + rest
        if not end:
            return ""
        head = self._take_text()
        if self._place is _Place.KEY:
            self._take_key(head)
            return rest
        if not self._take_name(head):
            self.outcome = Outcome.REJECTED
        elif end == self._form.parameter_open:
            self._enter(_Place.KEY)
        else:
            self._enter(_Place.BODY)
        return rest

    def _read_object(self, text: str, stream: JsonStream) -> str:
        """The first thing between the call's tags, as far as it is an object."""
        lead = text.lstrip()
        if not stream.num_values and not lead.startswith("{"):
            self._object_text.append(text)
            return self._leave_object() if lead else ""
        taken = stream.feed(text)
        self._object_text.append(text[:taken])
        if stream.is_done:
            self._add(self._leave_object())
            return text[taken:]
        return self._leave_object() + text[taken:] if stream.has_failed else ""

    def _leave_object(self) -> str:
        """What was read of it; from here on tags are looked for."""
        read = "".join(self._object_text)
        self._object, self._object_text = None, []
        return read

    def _read_body(self, text: str) -> str:
        before, tag, rest = self._tags.feed(text)
        self._add(before)
        if not tag:
            return ""
        is_in_value = self._place is _Place.VALUE
        if tag in self._form.outer:
            self._end_call()
            return tag + rest
        if tag == self._form.parameter_open:
            if is_in_value:
                self._end_value()
            self._enter(_Place.KEY)
        elif tag == self._form.parameter_close:
            if is_in_value:
                self._end_value()
                self._enter(_Place.BODY)
        elif is_in_value:
            if self._possible_end is None:
                self._possible_end = len(self._text)
            self._add(tag)
        else:
            self._end_call()
        return rest

    def _enter(self, place: _Place) -> None:
        self._place = place
        self._take_text()

    def _add(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._num_chars += len(text)

    def _take_text(self) -> str:
        text = "".join(self._text)
        self._text.clear()
        self._num_chars = 0
        return text

    # --- what was read -------------------------------------------------------------------

    def _take_name(self, head: str) -> bool:
        """The call's opening tag is complete; False if it names no declared tool."""
        if self._form.has_attributes:
            head = _attribute(_NAME_ATTRIBUTE, head)
        python = _PYTHON_CALL.fullmatch(head)
        name = self._sink.tools.resolve((python[1] if python else head).strip(" \t\r\n\"'"))
        if name is None:
            return False
        self._pairs = CallPairs(self._sink, name)
        return not python or self._pairs.take_object(python[2], is_call=True)

    def _take_key(self, head: str) -> None:
        self._num_parameters += 1
        self._key = head.strip(" \t\r\n\"'")
        self._is_json = None
        if self._form.has_attributes:
            self._key = _attribute(_NAME_ATTRIBUTE, head)
            says_string = _attribute(_STRING_ATTRIBUTE, head)
            self._is_json = says_string != "true" if says_string else None
        self._possible_end = None
        self._enter(_Place.VALUE)

    def _end_value(self) -> None:
        if self._pairs is not None:
            self._pairs.add(self._key, self._take_text(), is_json=self._is_json)

    def _end_call(self) -> None:
        if self._pairs is None or self._place is _Place.KEY or not self._ends_well(self._pairs):
            self.outcome = Outcome.REJECTED
            return
        self.outcome = Outcome.DONE
        self._pairs.send()

    def _ends_well(self, pairs: CallPairs) -> bool:
        if self._place is _Place.VALUE:
            if self._possible_end is not None:
                del self._text[self._possible_end :]
            self._end_value()
            return True
        body = self._take_text().strip()
        return bool(self._num_parameters) or not body or pairs.take_object(body)


def _attribute(pattern: re.Pattern[str], head: str) -> str:
    found = pattern.search(head)
    return found[1] if found else ""
