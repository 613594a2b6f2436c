"""CallPairs: arguments that come as texts by name, and how they become JSON."""

from __future__ import annotations

import json

from luce.text.tools.argument_types import typed_object
from luce.text.tools.element import CallSink
from luce.text.tools.json_stream import JsonStream, strict_json


class CallPairs:
    """Collects one call's arguments; nothing is sent before the call's end.

    Args:
        name: a declared tool.
    """

    def __init__(self, sink: CallSink, name: str) -> None:
        self._sink = sink
        self._name = name
        self._values: dict[str, str] = {}
        self._object: str | None = None

    def add(self, key: str, text: str, *, is_json: bool | None = None) -> None:
        """An argument.

        Args:
            text: the value; one line end at each side is markup.
            is_json: the text is JSON; False: it is a string; None: what the schema says.
        """
        text = _without_markup_lines(text)
        strict = strict_json(text) if is_json else None
        if is_json is None:
            strict = self._sink.tools.json_value(self._name, key, text)
        self._values[key] = _quoted(text) if strict is None else strict

    def take_object(self, text: str, *, is_call: bool = False) -> bool:
        """All arguments at once, as an object or a Python call's list; False if it is neither."""
        stream = JsonStream(is_call=is_call)
        taken = stream.feed(text)
        opening = "(" if is_call else "{"
        if not text.lstrip().startswith(opening) or not stream.close() or text[taken:].strip():
            return False
        self._object = typed_object(stream.take(), self._sink.tools, self._name)
        return True

    def send(self) -> None:
        """The call is complete."""
        self._sink.begin(self._name)
        self._sink.arguments(self._json())
        self._sink.end()

    def send_beginning(self, key: str | None = None, text: str = "") -> None:
        """The call was cut off, inside the value of `key` if there is one."""
        beginning = self._json().removesuffix("}")
        if key is not None and self._sink.tools.is_text(self._name, key):
            comma = ", " if self._values else ""
            value = _quoted(_without_markup_lines(text)).removesuffix('"')
            beginning += f"{comma}{_quoted(key)}: {value}"
        self._sink.begin(self._name)
        self._sink.arguments(beginning)

    def _json(self) -> str:
        if self._object is not None:
            return self._object
        pairs = (f"{_quoted(key)}: {value}" for key, value in self._values.items())
        return "{" + ", ".join(pairs) + "}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _without_markup_lines(text: str) -> str:
    for end in ("\r\n", "\n"):
        if text.startswith(end):
            text = text[len(end) :]
            break
    for end in ("\r\n", "\n"):
        if text.endswith(end):
            return text[: -len(end)]
    return text
