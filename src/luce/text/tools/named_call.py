"""A call that begins with the tool's name: `f{...}`, `f(a=1)`, `f[ARGS]{...}`, `f<arg_key>...`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from luce.text.markers import MarkerScanner, MarkerSet
from luce.text.tools.arg_pairs import KEY_OPEN, ArgPairs
from luce.text.tools.argument_types import ArgumentTypes
from luce.text.tools.element import CallSink, Outcome
from luce.text.tools.json_stream import JsonStream

MAX_HEAD_CHARS = 512
"""Longest text in front of the arguments, and so the longest name."""

_NAME = re.compile(r"\s*([\w.:\-/]*)")


@dataclass(frozen=True, slots=True)
class NameForm:
    """How a name and its arguments stand together.

    Attributes:
        starts: what begins the arguments: `{`, `(` or `<arg_key>`.
        head: all text in front of that, with the name in the group `name`.
        ends: what may follow the name where the call has no arguments.
        is_strict: prose may look like this, so a name that is not declared, or other text than
            white space behind it, shows at once that it is no call.
        raw_quote: what stands around strings in which no character has a meaning.
    """

    starts: tuple[str, ...]
    head: re.Pattern[str] = re.compile(r"\s*(?P<name>[\w.:\-/]+)\s*")
    ends: tuple[str, ...] = ()
    is_strict: bool = True
    raw_quote: str = ""


@lru_cache(maxsize=32)
def _marker_sets(form: NameForm) -> tuple[MarkerSet, MarkerSet]:
    quotes = (form.raw_quote,) if form.raw_quote else ()
    return MarkerSet((*form.starts, *form.ends)), MarkerSet(quotes)


class NamedCall:
    """Reads one call, from in front of the name; arguments in JSON are streamed."""

    def __init__(self, sink: CallSink, form: NameForm) -> None:
        self.outcome = Outcome.OPEN
        self._sink = sink
        self._form = form
        self._starts, self._quotes = map(MarkerScanner, _marker_sets(form))
        self._head = ""
        self._name = ""
        self._pairs: ArgPairs | None = None
        self._stream: JsonStream | None = None
        self._has_begun = False
        self._is_in_quotes = False

    def feed(self, text: str) -> str:
        """See `Element.feed`."""
        if not self._name:
            text = self._read_head(text)
        if self._pairs is not None:
            text = self._pairs.feed(text)
            self.outcome = self._pairs.outcome
        elif self._stream is not None:
            text = self._read_arguments(text, self._stream)
        return text

    def finish(self, *, is_cut: bool) -> None:
        """See `Element.finish`."""
        if self.outcome is not Outcome.OPEN:
            return
        if self._pairs is not None:
            self._pairs.finish(is_cut=is_cut)
            self.outcome = self._pairs.outcome
            return
        stream = self._stream
        if stream is not None and not self._is_in_quotes and not is_cut and stream.close():
            self._send(stream)
        elif stream is not None and (is_cut or self._has_begun):
            self._send_arguments(stream)
            self.outcome = Outcome.DONE
        else:
            self.outcome = Outcome.REJECTED

    def _read_head(self, text: str) -> str:
        before, marker, rest = self._starts.feed(text)
        head = self._head + before
        if len(head) > MAX_HEAD_CHARS:
            self.outcome = Outcome.REJECTED
            return head[MAX_HEAD_CHARS:] + (marker or self._starts.flush()) + rest
        wrong = self._wrong_from(head, is_whole=bool(marker))
        if wrong is not None:
            self.outcome = Outcome.REJECTED
            return head[wrong:] + (marker or self._starts.flush()) + rest
        self._head = head
        if not marker:
            return ""
        found = self._form.head.fullmatch(head)
        name = self._sink.tools.resolve(found["name"]) if found else None
        if name is None:
            self.outcome = Outcome.REJECTED
            return marker + rest
        self._name = name
        return self._begin_arguments(marker, rest)

    def _wrong_from(self, head: str, *, is_whole: bool) -> int | None:
        """Where it shows that the text is no call, if it does."""
        if not self._form.is_strict:
            return None
        found = _NAME.match(head)
        if found is None or (found.end() == len(head) and not is_whole):
            return None
        if self._sink.tools.resolve(found[1]) is None:
            return found.end()
        behind = head[found.end() :].lstrip()
        return len(head) - len(behind) if behind else None

    def _begin_arguments(self, marker: str, rest: str) -> str:
        if marker == KEY_OPEN:
            self._pairs = ArgPairs(self._sink, self._name)
            return marker + rest
        if marker in self._form.starts:
            self._stream = JsonStream(is_call=marker == "(")
            self._stream.listener = ArgumentTypes(
                self._stream, self._sink.tools, self._name, depth=1
            )
            return marker + rest
        self._sink.begin(self._name)
        self._sink.arguments("{}")
        self._sink.end()
        self.outcome = Outcome.DONE
        return marker + rest

    def _read_arguments(self, text: str, stream: JsonStream) -> str:
        while text and self.outcome is Outcome.OPEN:
            before, quote, rest = self._quotes.feed(text)
            if self._is_in_quotes:
                stream.add_to_string(before)
            else:
                taken = stream.feed(before)
                if stream.is_done or stream.has_failed:
                    rest = before[taken:] + (quote or self._quotes.flush()) + rest
                    self._send(stream) if stream.is_done else self._give_up(rest, stream)
                    return rest
            if quote and not self._switch_quotes(stream):
                self._give_up(quote, stream)
                return quote + rest
            text = rest
        self._send_if_sure(stream)
        return text

    def _switch_quotes(self, stream: JsonStream) -> bool:
        if self._is_in_quotes:
            stream.close_string()
            self._is_in_quotes = False
            return True
        self._is_in_quotes = stream.open_string()
        return self._is_in_quotes

    def _send_if_sure(self, stream: JsonStream) -> None:
        if self._has_begun or stream.num_values > 1:
            self._send_arguments(stream)

    def _send_arguments(self, stream: JsonStream) -> None:
        """Pass on what there is; the call begins with its first value, see `JsonCall`."""
        if not self._has_begun:
            self._has_begun = True
            self._sink.begin(self._name)
        self._sink.arguments(stream.take())

    def _send(self, stream: JsonStream) -> None:
        self._send_arguments(stream)
        self._sink.end()
        self.outcome = Outcome.DONE

    def _give_up(self, rest: str, stream: JsonStream) -> None:
        if rest.startswith("<") and stream.close():  # closing brackets are missing
            self._send(stream)
            return
        self._send_if_sure(stream)
        self.outcome = Outcome.DONE if self._has_begun else Outcome.REJECTED
