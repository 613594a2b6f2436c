"""Arguments of the wrong type, put right while they stream: `"5"` where the schema wants a number.

Models quote what they should not and the other way round. Only what the schema rules out is
touched, and only if the text it stands for is a value of the type wanted.
"""

from __future__ import annotations

import json

from luce.text.tools.declared import DeclaredTools
from luce.text.tools.json_stream import JsonStream

_STRINGS = {"string", "null"}


class ArgumentTypes:
    """A `JsonListener` for the arguments of one call.

    Args:
        stream: reads them; is made to hold back values in doubt.
        tools: holds the schema.
        name: a declared tool.
        depth: how many brackets the arguments' names stand in.
    """

    def __init__(self, stream: JsonStream, tools: DeclaredTools, name: str, depth: int) -> None:
        self._stream = stream
        self._tools = tools
        self._name = name
        self._depth = depth
        self._key = ""

    def on_key(self, depth: int, key: str) -> None:
        """See `JsonListener.on_key`."""
        if depth == self._depth:
            self._key = key

    def on_value_start(self, depth: int, first: str) -> None:
        """See `JsonListener.on_value_start`."""
        if depth == self._depth and self._is_doubtful(first):
            self._stream.hold()

    def on_value_end(self, depth: int) -> None:
        """See `JsonListener.on_value_end`."""
        if self._stream.is_holding and depth == self._depth:
            self._stream.release(self._typed)

    def _is_doubtful(self, first: str) -> bool:
        kinds = set(self._tools.kinds(self._name, self._key))
        if first == '"':
            return bool(kinds) and "string" not in kinds
        return first == "0" and "string" in kinds and kinds <= _STRINGS

    def _typed(self, text: str) -> str:
        if text == "null":
            return text
        if not text.startswith('"'):
            return json.dumps(text)
        typed = self._tools.json_value(self._name, self._key, json.loads(text))
        return text if typed.startswith('"') else typed


def typed_object(text: str, tools: DeclaredTools, name: str) -> str:
    """A complete argument object, in strict JSON, put right."""
    stream = JsonStream()
    stream.listener = ArgumentTypes(stream, tools, name, depth=1)
    stream.feed(text)
    return stream.take()
