"""The parts of a chat request that decide its prompt: messages, tools, tool choice."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import msgspec

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects import openai_wire as wire
from luce.listener.dialects.billing_header import without_billing
from luce.text.call import ChatMessage, ToolChoice, ToolSpec

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


def tool_specs(tools: list[wire.Tool] | None) -> tuple[ToolSpec, ...]:
    """The tools on offer.

    Raises:
        InvalidRequest: a tool has no name or one that is taken, or its parameters are no object.
        UnsupportedFeature: a tool is no function.
    """
    specs: dict[str, ToolSpec] = {}
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        function = _function(tool, where)
        if function.name in specs:
            raise InvalidRequest(
                f"{where}.function.name: there is a tool {function.name[:64]!r} already.",
                param=f"{where}.function.name",
            )
        parameters = function.parameters
        if parameters and parameters.get("type", "object") != "object":
            raise InvalidRequest(
                f"{where}.function.parameters must be the schema of an object.",
                param=f"{where}.function.parameters.type",
            )
        spec = ToolSpec(function.name, function.description)
        specs[function.name] = replace(spec, parameters=parameters) if parameters else spec
    return tuple(specs.values())


def tool_choice(request: wire.ChatRequest) -> ToolChoice:
    """Which tool should be called, if any.

    Raises:
        InvalidRequest: it wants a tool that is not there.
        UnsupportedFeature: it wants a call for certain, which nothing here can enforce.
    """
    choice = request.tool_choice
    if choice is None:
        return "auto"
    if choice == "auto" or choice == "none":
        return choice
    if not request.tools:
        raise InvalidRequest("tool_choice wants a tool; there are no tools.", param="tool_choice")
    if isinstance(choice, wire.ChosenTool) and choice.type == "function":
        _check_named(choice, request.tools)
    raise UnsupportedFeature(
        "tool_choice cannot force a call here; only auto and none are supported.",
        param="tool_choice",
    )


def _check_named(choice: wire.ChosenTool, tools: list[wire.Tool]) -> None:
    if choice.function is None:
        raise InvalidRequest("tool_choice.function is required.", param="tool_choice.function")
    name = choice.function.name
    if all(tool.function is None or tool.function.name != name for tool in tools):
        raise InvalidRequest(
            f"tool_choice names {name[:64]!r}, which is not among the tools.",
            param="tool_choice",
        )


def _function(tool: wire.Tool, where: str) -> wire.FunctionSpec:
    if tool.type != "function":
        raise UnsupportedFeature(
            f"{where}: tools of type {tool.type[:64]!r} are not supported here, only functions.",
            param=f"{where}.type",
        )
    if tool.function is None:
        raise InvalidRequest(f"{where}.function is required.", param=f"{where}.function")
    if not tool.function.name:
        raise InvalidRequest(
            f"{where}.function.name must not be empty.", param=f"{where}.function.name"
        )
    return tool.function


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
            f"{where} must be one of {', '.join(_ROLES)}, not {role[:64]!r}.", param=where
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
            f"{where}.type is unknown: {part.type[:64]!r}; use text.", param=f"{where}.type"
        )
    name = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, name)
    if text is None:
        raise InvalidRequest(f"{where}.{name} is required.", param=f"{where}.{name}")
    return text
