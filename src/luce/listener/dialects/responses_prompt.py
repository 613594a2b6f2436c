"""From the items of Responses requests to turns of a conversation.

What the assistant thinks, says and calls comes as items of their own and becomes one turn.
Instructions, system and developer items at the beginning become one system turn. Later ones stay
where they are: moved to the front they would change the prompt of every turn.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Sequence
from typing import Any

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects import responses_wire as wire
from luce.listener.dialects.billing_header import without_billing
from luce.listener.dialects.responses_tools import CUSTOM_ARGUMENT, ClientTool
from luce.text.call import ChatMessage
from luce.units import quoted

_log = logging.getLogger(__name__)

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})
_MEDIA_PARTS = {
    "input_image": "images",
    "image_url": "images",
    "input_audio": "audio",
    "input_file": "files",
}
_OF_MAKERS_TOOLS = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
    }
)
"""Records of tools that ran elsewhere. They have no text for a model, so they are left out."""

_ROLES = ("user", "assistant", "system", "developer")
_REQUIRED: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "reasoning": (),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
}
_SEALED = "luce."
"""Begins reasoning that we gave the client as `encrypted_content`."""


def sealed(reasoning: str) -> str:
    """Reasoning in the form of `encrypted_content`: clients send it back unread."""
    return _SEALED + base64.b64encode(reasoning.encode()).decode("ascii")


def conversation(
    instructions: str | None, items: Sequence[wire.Item], num_past: int = 0
) -> tuple[ChatMessage, ...]:
    """The turns.

    Args:
        instructions: come first.
        items: of earlier responses, then the request's.
        num_past: how many are of earlier responses.

    Raises:
        InvalidRequest: an item is not whole; `param` names what.
        UnsupportedFeature: an item or a part is of a kind not served.
    """
    turns = _Turns()
    if instructions:
        turns.system(instructions)
    for index, item in enumerate(items):
        turns.take(item, f"input[{index - num_past}]")
    messages = turns.finish()
    if not messages:
        raise InvalidRequest("input holds nothing for the model to answer.", param="input")
    return messages


class _Turns:
    """Takes items in order; the assistant's turn stays open until somebody else's begins."""

    def __init__(self) -> None:
        self._done: list[ChatMessage] = []
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def take(self, item: wire.Item, where: str) -> None:
        kind = item.type or "message"
        if kind in _OF_MAKERS_TOOLS:
            _log.info("item left out", extra={"type": kind})
            return
        _check(item, kind, where)
        if kind == "message":
            self._message(item, _text(item.content, f"{where}.content"))
        elif kind == "reasoning":
            self._begin_assistant()
            self._reasoning.append(_reasoning(item, where))
        elif kind in ("function_call", "custom_tool_call"):
            self._calls.append(_call(item))
        else:
            output = _text(item.output, f"{where}.output")
            self._add(ChatMessage("tool", output, {"tool_call_id": item.call_id}))

    def system(self, text: str) -> None:
        """At the beginning texts are joined; later each is a turn of its own."""
        text = without_billing(text)
        if not text:
            return
        self._close()
        if len(self._done) == 1 and self._done[0].role == "system":
            text = f"{self._done.pop().content}\n\n{text}"
        self._done.append(ChatMessage("system", text))

    def finish(self) -> tuple[ChatMessage, ...]:
        self._close()
        return tuple(self._done)

    def _message(self, item: wire.Item, text: str) -> None:
        if item.role == "assistant":
            self._begin_assistant()
            self._texts.append(text)
        elif item.role == "user":
            self._add(ChatMessage("user", text))
        else:
            self.system(text)

    def _begin_assistant(self) -> None:
        """An answer that is complete and called nothing is over; more is another turn."""
        if self._texts and not self._calls:
            self._close()

    def _add(self, message: ChatMessage) -> None:
        self._close()
        self._done.append(message)

    def _close(self) -> None:
        if not (self._reasoning or self._texts or self._calls):
            return
        extra: dict[str, Any] = {}
        reasoning = "\n\n".join(text for text in self._reasoning if text)
        if reasoning:
            extra["reasoning_content"] = reasoning
        if self._calls:
            extra["tool_calls"] = list(self._calls)
        content = "".join(self._texts)
        if content or extra or self._texts:
            text = content or (None if self._calls else "")
            self._done.append(ChatMessage("assistant", text, extra))
        self._reasoning.clear()
        self._texts.clear()
        self._calls.clear()


def _check(item: wire.Item, kind: str, where: str) -> None:
    if kind not in _REQUIRED:
        raise UnsupportedFeature(
            f"{where}: items of type {quoted(kind)} are not supported here.", param=f"{where}.type"
        )
    for name in _REQUIRED[kind]:
        if getattr(item, name) is None:
            raise InvalidRequest(f"{where}.{name} is required.", param=f"{where}.{name}")
    if kind == "message" and item.role not in _ROLES:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(_ROLES)}, not {quoted(str(item.role))}.",
            param=f"{where}.role",
        )


def _call(item: wire.Item) -> dict[str, Any]:
    arguments = item.arguments
    if item.type == "custom_tool_call":
        arguments = {CUSTOM_ARGUMENT: item.input}
    return {
        "id": item.call_id,
        "type": "function",
        "function": {
            "name": ClientTool(item.name or "", item.namespace).our_name,
            "arguments": arguments,
        },
    }


def _reasoning(item: wire.Item, where: str) -> str:
    """What was thought, if it can be read: in full, else as we sealed it, else its summary."""
    if item.content:
        return _text(item.content, f"{where}.content")
    unsealed = _unsealed(item.encrypted_content or "")
    if unsealed is not None:
        return unsealed
    parts = [_text([part], f"{where}.summary") for part in item.summary or ()]
    return "\n\n".join(parts)


def _unsealed(content: str) -> str | None:
    if not content.startswith(_SEALED):
        return None
    try:
        return base64.b64decode(content.removeprefix(_SEALED), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _text(content: str | list[wire.Part] | None, where: str) -> str:
    if not isinstance(content, list):
        return content or ""
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: wire.Part, where: str) -> str:
    if part.type in _MEDIA_PARTS:
        raise UnsupportedFeature(
            f"{where}.type: this model takes no {_MEDIA_PARTS[part.type]}, only text.",
            param=f"{where}.type",
        )
    if part.type != "refusal" and part.type not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{where}.type is unknown: {quoted(part.type)}; use input_text.", param=f"{where}.type"
        )
    name = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, name)
    if text is None:
        raise InvalidRequest(f"{where}.{name} is required.", param=f"{where}.{name}")
    return text
