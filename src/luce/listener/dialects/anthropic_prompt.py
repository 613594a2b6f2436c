"""From Anthropic's Messages requests to prompts: system, turns, tools, thinking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects import anthropic_wire as wire
from luce.listener.dialects.anthropic_tools import ConversationTools
from luce.listener.dialects.billing_header import without_billing
from luce.listener.dialects.openai_fields import refuse_unserved, template_variables
from luce.text import call as ours
from luce.text.reasoning import ReasoningRequest, reasoning_request
from luce.units import quoted

_ROLES = ("user", "assistant", "system")
_ROLE_OF = {
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_use": "assistant",
    "tool_result": "user",
    "tool_addition": "system",
    "tool_removal": "system",
    "tool_reference": "tool_result",
}
_REQUIRED: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),  # only its maker can read it
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "tool_addition": ("tool",),
    "tool_removal": ("tool",),
    "tool_reference": ("tool_name",),
}


def prompt_call(request: wire.MessagesRequest) -> ours.GenerationCall:
    """The parts of a generation that decide what its prompt is.

    Raises:
        InvalidRequest: something is not as it should be; `param` names it.
        UnsupportedFeature: something would change the prompt and is not served.
    """
    refuse_unserved(request, wire.UNSERVED)
    choice = request.tool_choice
    tools = ConversationTools(request.tools or [])
    messages = (*_system(request.system, tools), *_turns(request.messages, tools))
    offer = tools.offer(choice)
    return ours.GenerationCall(
        model=request.model or None,
        messages=messages,
        tools=offer.specs,
        tool_choice=offer.choice,
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        reasoning=_reasoning(request),
        template_kwargs=template_variables(request.chat_template_kwargs),
        client_names=offer.names,
    )


def _reasoning(request: wire.MessagesRequest) -> ReasoningRequest:
    """Off unless asked for. The effort of an answer says how to think, not whether."""
    effort = request.reasoning_effort
    config = request.output_config
    if effort is None and config is not None and request.thinking is not None:
        effort = config.effort
    return reasoning_request(
        reasoning=request.reasoning,
        reasoning_effort=effort,
        thinking=request.thinking,
        chat_template_kwargs=request.chat_template_kwargs,
        default=False,
    )


def _system(content: wire.Content | None, tools: ConversationTools) -> Iterator[ours.ChatMessage]:
    _check_content(content, "system", "system", tools)
    yield from _system_turn(content, tools)


def _system_turn(
    content: wire.Content | None, tools: ConversationTools
) -> Iterator[ours.ChatMessage]:
    changes = ""
    if isinstance(content, list):
        changes = tools.told(content)
        # Blocks are joined as they are, so each header line ends with its block.
        content = "".join(without_billing(block.text or "") for block in content)
    text = _paragraphs(without_billing(content or ""), changes)
    if text:
        yield ours.ChatMessage("system", text)


def _turns(messages: list[wire.Message], tools: ConversationTools) -> Iterator[ours.ChatMessage]:
    for index, message in enumerate(messages):
        content = message.content
        _check_role(message.role, f"messages[{index}].role")
        _check_content(content, message.role, f"messages[{index}].content", tools)
        if message.role == "system":
            # It stays where it is: moved to the front it would change the prompt of every turn.
            yield from _system_turn(content, tools)
        elif isinstance(content, str):
            yield ours.ChatMessage(message.role, content)
        elif message.role == "assistant":
            yield _assistant(content)
        else:
            yield from _user(content, tools)


def _user(blocks: list[wire.Block], tools: ConversationTools) -> Iterator[ours.ChatMessage]:
    """Results of tools come first, each a turn of its own, then what the user says."""
    results = [block for block in blocks if block.type == "tool_result"]
    for block in results:
        content = _result(block.content, tools)
        yield ours.ChatMessage("tool", content, {"tool_call_id": block.tool_use_id})
    if len(results) < len(blocks) or not blocks:
        yield ours.ChatMessage("user", _text(blocks))


def _result(content: wire.Content | None, tools: ConversationTools) -> str:
    found = tools.told(content) if isinstance(content, list) else ""
    return _paragraphs(_text(content), found)


def _assistant(blocks: list[wire.Block]) -> ours.ChatMessage:
    extra: dict[str, Any] = {}
    thinking = "".join(block.thinking or "" for block in blocks if block.type == "thinking")
    if thinking:
        extra["reasoning_content"] = thinking
    calls = [_call(block) for block in blocks if block.type == "tool_use"]
    if calls:
        extra["tool_calls"] = calls
    return ours.ChatMessage("assistant", _text(blocks) or (None if calls else ""), extra)


def _call(block: wire.Block) -> dict[str, Any]:
    function = {"name": block.name, "arguments": block.input}
    return {"id": block.id, "type": "function", "function": function}


def _text(content: wire.Content | None) -> str:
    if not isinstance(content, list):
        return content or ""
    return "".join(block.text or "" for block in content if block.type == "text")


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))


def _check_role(role: str, where: str) -> None:
    if role not in _ROLES:
        raise InvalidRequest(
            f"{where} must be one of {', '.join(_ROLES)}, not {quoted(role)}.", param=where
        )


def _check_content(
    content: wire.Content | None, role: str, where: str, tools: ConversationTools
) -> None:
    """Check each block, and see to what it says of tools."""
    if isinstance(content, list):
        for index, block in enumerate(content):
            _check_block(block, role, f"{where}[{index}]")
            tools.take(block, f"{where}[{index}]")
            if block.type == "tool_result":
                _check_content(block.content, block.type, f"{where}[{index}].content", tools)


def _check_block(block: wire.Block, role: str, where: str) -> None:
    """Check that the block is of a type this role may use, and whole."""
    if block.type == "image":
        raise UnsupportedFeature(
            f"{where}.type: this model takes no images, only text.", param=f"{where}.type"
        )
    if block.type != "text" and block.type not in _ROLE_OF:
        raise UnsupportedFeature(
            f"{where}: blocks of type {quoted(block.type)} are not supported here.",
            param=f"{where}.type",
        )
    if block.type != "text" and _ROLE_OF[block.type] != role:
        raise InvalidRequest(
            f"{where}: a {block.type} block belongs to the {_ROLE_OF[block.type]}.",
            param=f"{where}.type",
        )
    for name in _REQUIRED[block.type]:
        if getattr(block, name) is None:
            raise InvalidRequest(f"{where}.{name} is required.", param=f"{where}.{name}")
