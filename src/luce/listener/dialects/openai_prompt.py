"""The messages of a chat request."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects import openai_wire as wire
from luce.listener.dialects.billing_header import without_billing
from luce.text.call import ChatMessage
from luce.units import quoted

_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_MEDIA_PARTS = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "input_audio": "audio",
    "audio": "audio",
    "file": "files",
    "video_url": "videos",
}
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEMPLATE_KEYS = ("name", "tool_call_id", "reasoning_content", "reasoning")


def chat_messages(messages: list[wire.Message]) -> tuple[ChatMessage, ...]:
    """The conversation.

    Raises:
        InvalidRequest: it is empty, or a turn is not whole; `param` names what.
        UnsupportedFeature: a part is no text.
    """
    if not messages:
        raise InvalidRequest("messages must not be empty.", param="messages")
    return tuple(map(_message, itertools.count(), messages))


def _message(index: int, message: wire.Message) -> ChatMessage:
    role = _role(message.role, f"messages[{index}].role")
    where = f"messages[{index}].content"
    content = message.content
    if content is None and role == "assistant":
        content = message.refusal
    if isinstance(content, list):
        content = _joined_parts(content, where)
    if content is None and not _may_lack_content(message):
        raise InvalidRequest(f"{where} is required.", param=where)
    extra: dict[str, Any] = {
        key: value for key in _TEMPLATE_KEYS if (value := getattr(message, key)) is not None
    }
    if message.tool_calls:
        extra["tool_calls"] = msgspec.to_builtins(message.tool_calls)
    if role == "system" and content:
        content = without_billing(content)
    return ChatMessage(role, content, extra)


def _role(role: str, where: str) -> str:
    if role not in _ROLES:
        raise InvalidRequest(
            f"{where} must be one of {', '.join(_ROLES)}, not {quoted(role)}.", param=where
        )
    return _ROLES[role]


def _may_lack_content(message: wire.Message) -> bool:
    """An answer that was cut off while the model reasoned has none either."""
    said = message.tool_calls or message.reasoning_content or message.reasoning
    return message.role == "assistant" and bool(said)


def _joined_parts(parts: list[wire.ContentPart], where: str) -> str:
    if not parts:
        raise InvalidRequest(f"{where} must not be empty.", param=where)
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(parts))


def _part_text(part: wire.ContentPart, where: str) -> str:
    if part.type in _MEDIA_PARTS:
        raise UnsupportedFeature(
            f"{where}: this model takes no {_MEDIA_PARTS[part.type]}, only text.", param=where
        )
    if part.type != "refusal" and part.type not in _TEXT_PARTS:
        raise InvalidRequest(
            f"{where}.type is unknown: {quoted(part.type)}; use text.", param=f"{where}.type"
        )
    name = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, name)
    if text is None:
        raise InvalidRequest(f"{where}.{name} is required.", param=f"{where}.{name}")
    return text
