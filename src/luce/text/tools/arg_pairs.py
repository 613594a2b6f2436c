"""Calls as GLM, Laguna and Bailing write them: `<arg_key>k</arg_key><arg_value>v</arg_value>`."""

from __future__ import annotations

from luce.text.markers import MarkerScanner, MarkerSet
from luce.text.tools.element import CallSink, Outcome
from luce.text.tools.pairs import CallPairs

KEY_OPEN, KEY_CLOSE = "<arg_key>", "</arg_key>"
VALUE_OPEN, VALUE_CLOSE = "<arg_value>", "</arg_value>"
CALL_CLOSE = "</tool_call>"

_TAGS = MarkerSet((KEY_OPEN, KEY_CLOSE, VALUE_OPEN, VALUE_CLOSE, CALL_CLOSE))


class ArgPairs:
    """Reads the arguments of one call, from the first `<arg_key>` on. Never rejects.

    Closing tags may be missing. The call's own closing tag is left to who comes next.

    Args:
        name: a declared tool.
    """

    def __init__(self, sink: CallSink, name: str) -> None:
        self.outcome = Outcome.OPEN
        self._pairs = CallPairs(sink, name)
        self._scanner = MarkerScanner(_TAGS)
        self._text: list[str] = []
        self._key = ""
        self._in_value = False

    def feed(self, text: str) -> str:
        """See `Element.feed`."""
        while text:
            before, tag, text = self._scanner.feed(text)
            self._text.append(before)
            if tag == CALL_CLOSE:
                self._end_call()
                return tag + text
            if tag:
                self._take_tag(tag)
        return ""

    def finish(self, *, is_cut: bool) -> None:
        """See `Element.finish`."""
        if self.outcome is not Outcome.OPEN:
            return
        if not is_cut:
            self._text.append(self._scanner.flush())
            self._end_call()
            return
        self.outcome = Outcome.DONE
        if self._in_value:
            self._pairs.send_beginning(self._key, "".join(self._text))
        else:
            self._pairs.send_beginning()

    def _take_tag(self, tag: str) -> None:
        text = "".join(self._text)
        self._text.clear()
        if self._in_value:
            self._pairs.add(self._key, text)
        elif tag in (KEY_CLOSE, VALUE_OPEN) and text.strip():
            self._key = text.strip()
        self._in_value = tag == VALUE_OPEN

    def _end_call(self) -> None:
        if self._in_value:
            self._pairs.add(self._key, "".join(self._text))
        self.outcome = Outcome.DONE
        self._pairs.send()
