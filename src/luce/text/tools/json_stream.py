"""JsonStream: relaxed JSON in, strict JSON out, piece by piece.

Models write almost JSON. What has one reading only is put right: keys without quotes, strings in
single quotes or backquotes, Python's constants, line ends inside strings, unknown escapes, a
comma before a closing bracket. Whatever is given out is the beginning of a valid JSON text, so it
can be streamed to a client before the rest is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from luce.text.tools.json_listener import JsonListener

MAX_DEPTH = 100
"""Deepest nesting of objects and arrays."""
MAX_WORD_CHARS = 512
"""Longest number, constant or key without quotes."""
WATCHED_DEPTH = 3
"""A listener is told of keys and values that are at most this many brackets deep."""

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[\w$+\-.]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CONSTANTS = {name: name for name in ("true", "false", "null")} | {
    "True": "true",
    "False": "false",
    "None": "null",
}
_PLAIN = {
    '"': re.compile(r'[^"\\\x00-\x1f]+'),
    "'": re.compile(r"""[^'"\\\x00-\x1f]+"""),
    "`": re.compile(r'[^`"\\\x00-\x1f]+'),
}
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_STRICT = {"}": "}", "]": "]", ")": "}"}
_REPLACEMENT = "\\ufffd"


class JsonStream:
    """Reads one value.

    Args:
        is_call: the value is the argument list of a Python call, `(a=1, b="x")`, which is given
            out as an object.

    Attributes:
        listener: is told of keys and values.
        is_done: the value is complete.
        has_failed: the text is no JSON in any reading.
        num_values: values begun so far, a number or constant once it is complete.
    """

    def __init__(self, listener: JsonListener | None = None, *, is_call: bool = False) -> None:
        self.listener = listener
        self._is_call = is_call
        self.is_done = False
        self.has_failed = False
        self.num_values = 0
        self._is_stopped = False
        self._state = self._read_value
        self._stack: list[str] = []
        self._out: list[str] = []
        self._held: int | None = None
        self._space: list[str] = []
        self._has_comma = False
        self._quote = ""
        self._is_key = False
        self._key: list[str] | None = None
        self._word: list[str] = []
        self._hex = ""
        self._high = ""

    def feed(self, text: str) -> int:
        """Take more text.

        Returns:
            How many characters were taken: all, unless the value ended or failed before.
        """
        position = 0
        while position < len(text) and not (self.is_done or self.has_failed):
            position = self._state(text, position)
        return position

    def take(self) -> str:
        """What was given out since it was taken last, up to what is held."""
        end = len(self._out) if self._held is None else self._held
        taken = "".join(self._out[:end])
        del self._out[:end]
        self._held = None if self._held is None else 0
        return taken

    @property
    def is_holding(self) -> bool:
        """Whether something is held."""
        return self._held is not None

    def hold(self) -> None:
        """Give out nothing of what follows until `release`."""
        self._held = len(self._out)

    def release(self, change: Callable[[str], str]) -> None:
        """Give out what was held, changed."""
        self._out[self._held :] = [change("".join(self._out[self._held :]))]
        self._held = None

    def stop(self) -> None:
        """Count the text as failed, whatever follows."""
        self.has_failed = True
        self._is_stopped = True

    def close(self) -> bool:
        """The text ends here: add closing brackets. True if that makes the value complete."""
        if self.is_done or self._is_stopped:
            return self.is_done
        self.has_failed = False
        if self._state == self._read_word:
            self._end_word()
        if self.has_failed or self._state not in (
            self._read_end,
            self._read_key,
            self._read_item,
        ):
            return False
        while self._stack:
            self._close_bracket(self._stack[-1])
        return True

    def open_string(self) -> bool:
        """A string begins whose text comes by `add_to_string`; False where none can stand."""
        if self._state not in (self._read_value, self._read_item, self._read_key):
            return False
        self._begin_string("", is_key=self._state == self._read_key)
        return True

    def add_to_string(self, text: str) -> None:
        """More of the string, in which no character has a meaning."""
        self._give_string(json.dumps(text, ensure_ascii=False)[1:-1])

    def close_string(self) -> None:
        """The string ends."""
        self._end_string()

    # --- states: each takes text from a position and says where it stopped ---------------

    def _read_value(self, text: str, position: int) -> int:
        position = self._skip_space(text, position)
        if position == len(text):
            return position
        character = text[position]
        if character in "{[" or (character == "(" and self._is_call and not self._stack):
            self._open_bracket(character)
            return position + 1
        if character in _PLAIN:
            self._begin_string(character, is_key=False)
            return position + 1
        return self._begin_word(text, position, is_key=False)

    def _read_item(self, text: str, position: int) -> int:
        """A value or the end of the array."""
        position = self._skip_space(text, position)
        if text[position : position + 1] == "]":
            self._close_bracket("]")
            return position + 1
        return self._read_value(text, position)

    def _read_key(self, text: str, position: int) -> int:
        """A key or the end of the object."""
        position = self._skip_space(text, position)
        if position == len(text):
            return position
        character = text[position]
        if character == self._stack[-1]:
            self._close_bracket(character)
            return position + 1
        if character in _PLAIN:
            self._begin_string(character, is_key=True)
            return position + 1
        return self._begin_word(text, position, is_key=True)

    def _read_colon(self, text: str, position: int) -> int:
        position = self._skip_space(text, position)
        if position == len(text):
            return position
        is_python = self._is_call and len(self._stack) == 1
        if text[position] != ("=" if is_python else ":"):
            self._fail()
            return position
        self._give_space()
        self._out.append(":")
        self._state = self._read_value
        return position + 1

    def _read_end(self, text: str, position: int) -> int:
        """A comma or a closing bracket behind a value."""
        position = self._skip_space(text, position)
        if position == len(text):
            return position
        character = text[position]
        if character == ",":
            self._give_space()
            self._has_comma = True
            self._state = self._read_item if self._stack[-1] == "]" else self._read_key
        elif character == self._stack[-1]:
            self._close_bracket(character)
        else:
            self._fail()
            return position
        return position + 1

    def _read_word(self, text: str, position: int) -> int:
        found = _WORD.match(text, position)
        if found is None:
            self._end_word()
            return position
        self._word.append(found[0])
        if sum(map(len, self._word)) > MAX_WORD_CHARS:
            self.stop()
        return found.end()

    def _read_string(self, text: str, position: int) -> int:
        if self._high and text[position] != "\\":
            self._drop_high()
        plain = _PLAIN[self._quote].match(text, position)
        if plain is not None:
            self._give_string(plain[0])
            return plain.end()
        character = text[position]
        if character == self._quote:
            self._end_string()
        elif character == "\\":
            self._state = self._read_escape
        else:  # the other quote, or a control character
            self._give_string(json.dumps(character)[1:-1])
        return position + 1

    def _read_escape(self, text: str, position: int) -> int:
        character = text[position]
        self._state = self._read_string
        if character == "u":
            self._hex = ""
            self._state = self._read_hex
            return position + 1
        self._drop_high()
        if character in '"\\/bfnrt':
            self._give_string("\\" + character)
        elif character in "'`":
            self._give_string(character)
        else:
            self._give_string("\\\\")
            return position
        return position + 1

    def _read_hex(self, text: str, position: int) -> int:
        if text[position] not in "0123456789abcdefABCDEF":
            self._drop_high()
            self._give_string("\\\\u" + self._hex)
            self._state = self._read_string
            return position
        self._hex += text[position]
        if len(self._hex) == 4:
            self._state = self._read_string
            self._give_code_unit()
        return position + 1

    # --- parts ---------------------------------------------------------------------------

    def _fail(self) -> None:
        """What comes next is no JSON; the value may still end here, see `close`."""
        self.has_failed = True

    def _skip_space(self, text: str, position: int) -> int:
        found = _SPACE.match(text, position)
        if found is None or not found[0]:
            return position
        self._space.append(found[0])
        return found.end()

    def _give_space(self) -> None:
        if self._has_comma:
            self._out.append(",")
            self._has_comma = False
        # Other white space than JSON's becomes a plain space.
        self._out += (re.sub(r"[^ \t\r\n]", " ", space) for space in self._space)
        self._space.clear()

    def _begin_value(self, first: str) -> None:
        self._give_space()
        self.num_values += 1
        if self.listener is not None and len(self._stack) <= WATCHED_DEPTH:
            self.listener.on_value_start(len(self._stack), first)

    def _end_value(self) -> None:
        self._state = self._read_end
        self.is_done = not self._stack
        if self.listener is not None and len(self._stack) <= WATCHED_DEPTH:
            self.listener.on_value_end(len(self._stack))

    def _open_bracket(self, character: str) -> None:
        if len(self._stack) == MAX_DEPTH:
            self.stop()
            return
        self._begin_value("[" if character == "[" else "{")
        self._out.append("[" if character == "[" else "{")
        self._stack.append(_CLOSERS[character])
        self._state = self._read_item if character == "[" else self._read_key

    def _close_bracket(self, character: str) -> None:
        self._has_comma = False
        self._give_space()
        self._stack.pop()
        self._out.append(_STRICT[character])
        self._end_value()

    def _begin_word(self, text: str, position: int, *, is_key: bool) -> int:
        if _WORD.match(text, position) is None:
            self._fail()
            return position
        self._word.clear()
        self._is_key = is_key
        self._state = self._read_word
        return position

    def _end_word(self) -> None:
        word = "".join(self._word)
        if self._is_key:
            self._begin_string("", is_key=True)
            self.add_to_string(word)
            self._end_string()
            return
        strict = word if _NUMBER.fullmatch(word) else _CONSTANTS.get(word)
        if strict is None:
            self._fail()
            return
        self._begin_value("0")
        self._out.append(strict)
        self._end_value()

    def _begin_string(self, quote: str, *, is_key: bool) -> None:
        self._quote = quote
        self._is_key = is_key
        if is_key:
            self._give_space()
            self._key = [] if len(self._stack) <= WATCHED_DEPTH else None
        else:
            self._begin_value('"')
        self._out.append('"')
        self._state = self._read_string

    def _give_string(self, text: str) -> None:
        self._out.append(text)
        if self._is_key and self._key is not None:
            self._key.append(text)

    def _end_string(self) -> None:
        self._drop_high()
        self._out.append('"')
        if not self._is_key:
            self._end_value()
            return
        self._state = self._read_colon
        if self.listener is not None and self._key is not None:
            self.listener.on_key(len(self._stack), json.loads('"' + "".join(self._key) + '"'))

    def _give_code_unit(self) -> None:
        """Give `\\uXXXX` out; halves of a surrogate pair only together."""
        unit = int(self._hex, 16)
        is_low = 0xDC00 <= unit < 0xE000
        if self._high and is_low:
            self._give_string(self._high + "\\u" + self._hex)
            self._high = ""
            return
        self._drop_high()
        if 0xD800 <= unit < 0xDC00:
            self._high = "\\u" + self._hex
        else:
            self._give_string(_REPLACEMENT if is_low else "\\u" + self._hex)

    def _drop_high(self) -> None:
        if self._high:
            self._high = ""
            self._give_string(_REPLACEMENT)


def strict_json(text: str) -> str | None:
    """The whole text as strict JSON; None if it is none in any reading."""
    stream = JsonStream()
    taken = stream.feed(text)
    if not stream.close() or text[taken:].strip():
        return None
    return stream.take()
