"""A call that is a JSON object with the name and the arguments in it.

`{"name": "f", "arguments": {...}}`, in any order; `parameters` is the same as `arguments`; the
arguments may be a JSON string; `{"function": "f", "parameters": {...}}`; all of it one level
deeper under `function` or `function_call`.
"""

from __future__ import annotations

import json

from luce.text.tools.argument_types import ArgumentTypes, typed_object
from luce.text.tools.declared import fits
from luce.text.tools.element import CallSink, Outcome
from luce.text.tools.json_stream import JsonStream, strict_json

_NAME_KEYS = frozenset({"name", "function"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_NESTS = frozenset({"function", "function_call"})
_KNOWN_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | _NESTS | {"type", "id"}


class JsonCall:
    """Reads one object; the arguments are streamed while they come.

    Args:
        is_bare: nothing announced a call, so that the object may as well be an answer in JSON:
            it must have no other keys.
        may_be_arguments: where it is bare and one tool is declared, an object that is the whole
            answer and holds that tool's arguments is a call, too.
    """

    def __init__(
        self, sink: CallSink, *, is_bare: bool = False, may_be_arguments: bool = True
    ) -> None:
        self.outcome = Outcome.OPEN
        self._sink = sink
        self._is_bare = is_bare
        self._may_be_arguments = may_be_arguments
        self._stream = JsonStream(self)
        self._path = ["", ""]
        self._keys: list[str] = []
        self._is_whole_answer = False
        self._role = ""
        self._role_depth = 0
        self._name: str | None = None
        self._arguments: list[str] = []
        self._has_arguments = False
        self._is_streaming = False  # the arguments are an object and are being read
        self._types: ArgumentTypes | None = None
        self._first_value = 0
        self._has_begun = False

    def feed(self, text: str) -> str:
        """See `Element.feed`."""
        rest = text[self._stream.feed(text) :]
        self._send()
        if self._stream.has_failed:
            # Closing marks may be missing in front of a tag.
            if not (rest.startswith("<") and self._stream.close()):
                self._give_up()
                return rest
            self._send()
        if self._stream.is_done:
            return self._complete(rest)
        return ""

    def finish(self, *, is_cut: bool) -> None:
        """See `Element.finish`."""
        if self.outcome is not Outcome.OPEN:
            return
        if self._is_whole_answer:
            self._finish_whole_answer(is_cut=is_cut)
            return
        if not is_cut and self._stream.close():
            self._send()
            self._complete("")
            return
        if is_cut and self._is_streaming and self._name is not None:
            self._begin()
        self._give_up()

    # --- told by the stream --------------------------------------------------------------

    def on_key(self, depth: int, key: str) -> None:
        """See `JsonListener.on_key`."""
        if self._types is not None:
            self._types.on_key(depth, key)
        if depth > len(self._path):
            return
        self._path[depth - 1] = key
        if depth > 1 or not self._is_bare:
            return
        if not self._keys and key not in _KNOWN_KEYS:
            self._is_whole_answer = self._may_be_arguments
        self._keys.append(key)
        if self._is_whole_answer:
            only = self._sink.tools.only
            if only is None or not fits(only, self._keys, is_complete=False):
                self._stream.stop()
        elif key not in _KNOWN_KEYS:
            self._stream.stop()

    def on_value_start(self, depth: int, first: str) -> None:
        """See `JsonListener.on_value_start`."""
        if self._types is not None:
            self._types.on_value_start(depth, first)
        if self._role or self._is_whole_answer or depth > len(self._path):
            return
        self._role = self._role_of(depth, first)
        self._role_depth = depth
        if self._role:
            self._stream.take()
        if self._role == "arguments":
            self._is_streaming = first == "{"
            if self._is_streaming and self._name is not None:
                self._types = ArgumentTypes(self._stream, self._sink.tools, self._name, depth + 1)
            self._first_value = self._stream.num_values

    def on_value_end(self, depth: int) -> None:
        """See `JsonListener.on_value_end`."""
        if self._types is not None:
            self._types.on_value_end(depth)
        if not self._role or depth != self._role_depth:
            return
        role, self._role = self._role, ""
        self._types = None
        text = self._stream.take()
        if role == "name":
            self._take_name(json.loads(text))
        else:
            self._take_arguments(text)

    def _role_of(self, depth: int, first: str) -> str:
        if depth == 0 or (depth == 2 and self._path[0] not in _NESTS):
            return ""
        key = self._path[depth - 1]
        if key in _NAME_KEYS and first == '"' and self._name is None:
            return "name"
        return "arguments" if key in _ARGUMENT_KEYS and not self._has_arguments else ""

    def _take_name(self, name: str) -> None:
        self._name = self._sink.tools.resolve(name)
        if self._name is None:
            self._stream.stop()
        elif self._has_arguments:  # They came first, and so without their types.
            whole = "".join(self._arguments)
            self._arguments = [typed_object(whole, self._sink.tools, self._name)]

    def _take_arguments(self, text: str) -> None:
        self._has_arguments = True
        if self._is_streaming:
            self._arguments.append(text)
            self._is_streaming = False
            return
        strict: str | None = None
        if text == "null":
            strict = "{}"
        elif text.startswith('"'):
            inner = json.loads(text)
            strict = strict_json(inner) if inner.strip() else "{}"
        if strict is None or not strict.startswith("{"):
            self._has_arguments = False
            self._stream.stop()
        elif self._name is None:
            self._arguments.append(strict)
        else:
            self._arguments.append(typed_object(strict, self._sink.tools, self._name))

    # --- to the sink ---------------------------------------------------------------------

    def _send(self) -> None:
        """Pass on what is known of the arguments.

        The call begins with the first value among them: until then the text can be given back,
        and most text that is no JSON at all shows itself by then.
        """
        if self._is_streaming:
            self._arguments.append(self._stream.take())
        is_sure = self._has_arguments or (
            self._is_streaming and self._stream.num_values > self._first_value
        )
        if self._name is not None and is_sure:
            self._begin()

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._sink.begin(self._name or "")
        self._sink.arguments("".join(self._arguments))
        self._arguments.clear()

    def _complete(self, rest: str) -> str:
        if self._is_whole_answer:
            if rest.strip():
                self.outcome = Outcome.REJECTED
                return rest
            return ""
        if self._name is None or (self._is_bare and not self._has_arguments):
            self.outcome = Outcome.REJECTED
            return rest
        if not self._has_arguments:
            self._arguments.append("{}")
            self._begin()
        self._sink.end()
        self.outcome = Outcome.DONE
        return rest

    def _give_up(self) -> None:
        if self._has_begun and self._has_arguments:
            self._sink.end()
        self.outcome = Outcome.DONE if self._has_begun else Outcome.REJECTED

    def _finish_whole_answer(self, *, is_cut: bool) -> None:
        only = self._sink.tools.only
        is_complete = self._stream.is_done and not is_cut
        if only is None or not is_complete or not fits(only, self._keys, is_complete=True):
            self.outcome = Outcome.REJECTED
            return
        self._name = only.name
        arguments = typed_object(self._stream.take(), self._sink.tools, only.name)
        self._arguments.append(arguments)
        self._begin()
        self._sink.end()
        self.outcome = Outcome.DONE
