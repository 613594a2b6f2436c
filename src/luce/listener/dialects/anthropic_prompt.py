"""From Anthropic's Messages requests to prompts: system, turns, tools, thinking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects import anthropic_wire as wire
from luce.listener.dialects.billing_header import without_billing
from luce.listener.dialects.openai_fields import template_variables
from luce.text import call as ours
from luce.text.reasoning import ReasoningRequest, reasoning_request

_CHOICES: dict[str, ours.ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
_ROLE_OF = {
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_use": "assistant",
    "tool_result": "user",
}
_REQUIRED: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),  # only its maker can read it
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}


def prompt_call(request: wire.MessagesRequest) -> ours.GenerationCall:
    """The parts of a generation that decide what its prompt is.

    Raises:
        InvalidRequest: something is not as it should be; `param` names it.
        UnsupportedFeature: something would change the prompt and is not served.
    """
    _refuse_unserved(request)
    choice = request.tool_choice
    return ours.GenerationCall(
        model=request.model or None,
        messages=(*_system(request.system), *_turns(request.messages)),
        tools=_tools(request.tools or []),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        reasoning=_reasoning(request),
        template_kwargs=template_variables(request.chat_template_kwargs),
    )


def _refuse_unserved(request: wire.MessagesRequest) -> None:
    for name in wire.UNSERVED:
        if getattr(request, name):
            raise UnsupportedFeature(f"{name} is not supported here.", param=name)
    if request.output_config is not None and request.output_config.format:
        name = "output_config.format"
        raise UnsupportedFeature(f"{name} is not supported here.", param=name)


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


def _system(content: wire.Content | None) -> Iterator[ours.ChatMessage]:
    if isinstance(content, list):
        for index, block in enumerate(content):
            _check_block(block, "system", f"system[{index}]")
    yield from _system_turn(content)


def _system_turn(content: wire.Content | None) -> Iterator[ours.ChatMessage]:
    if isinstance(content, list):
        # Blocks are joined as they are, so each header line ends with its block.
        content = "".join(without_billing(block.text or "") for block in content)
    text = without_billing(content or "")
    if text:
        yield ours.ChatMessage("system", text)


def _turns(messages: list[wire.Message]) -> Iterator[ours.ChatMessage]:
    for index, message in enumerate(messages):
        content = message.content
        if isinstance(content, list):
            for position, block in enumerate(content):
                _check_block(block, message.role, f"messages[{index}].content[{position}]")
        if message.role == "system":
            # It stays where it is: moved to the front it would change the prompt of every turn.
            yield from _system_turn(content)
        elif isinstance(content, str):
            yield ours.ChatMessage(message.role, content)
        elif message.role == "assistant":
            yield _assistant(content)
        else:
            yield from _user(content)


def _user(blocks: list[wire.Block]) -> Iterator[ours.ChatMessage]:
    """Results of tools come first, each a turn of its own, then what the user says."""
    results = [block for block in blocks if block.type == "tool_result"]
    for block in results:
        yield ours.ChatMessage("tool", _text(block.content), {"tool_call_id": block.tool_use_id})
    if len(results) < len(blocks) or not blocks:
        yield ours.ChatMessage("user", _text(blocks))


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


def _check_block(block: wire.Block, role: str, where: str) -> None:
    """Check that the block is of a type this role may use, and whole."""
    if block.type == "image":
        raise UnsupportedFeature(
            f"{where}.type: this model takes no images, only text.", param=f"{where}.type"
        )
    if block.type != "text" and block.type not in _ROLE_OF:
        raise UnsupportedFeature(
            f"{where}: blocks of type {block.type[:64]!r} are not supported here.",
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
    if block.type == "tool_result" and isinstance(block.content, list):
        for index, part in enumerate(block.content):
            _check_block(part, "tool_result", f"{where}.content[{index}]")


def _tools(tools: list[wire.Tool]) -> tuple[ours.ToolSpec, ...]:
    specs: dict[str, ours.ToolSpec] = {}
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.input_schema is None:
            raise UnsupportedFeature(
                f"{where}.input_schema: only tools that have one are supported here.",
                param=f"{where}.input_schema",
            )
        if tool.name in specs:
            raise InvalidRequest(
                f"{where}.name: there is a tool {tool.name[:64]!r} already.", param=f"{where}.name"
            )
        specs[tool.name] = ours.ToolSpec(tool.name, tool.description, tool.input_schema)
    return tuple(specs.values())


def _tool_choice(choice: wire.ToolChoice | None) -> ours.ToolChoice:
    if choice is None:
        return "auto"
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise InvalidRequest("tool_choice.name is required.", param="tool_choice.name")
    return ours.NamedTool(choice.name)
