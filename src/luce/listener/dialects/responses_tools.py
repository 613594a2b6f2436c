"""Tools of Responses requests: functions, custom tools as functions, the others left out."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects import responses_wire as wire
from luce.text import call as ours

_log = logging.getLogger(__name__)

CUSTOM_ARGUMENT = "input"
"""The one argument of the function that stands for a custom tool."""

_MAX_LOGGED = 8
_MAX_LOGGED_CHARS = 64


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that the model is told of.

    Attributes:
        specs: as functions.
        custom: names of those that are custom tools to the client.
    """

    specs: tuple[ours.ToolSpec, ...]
    custom: frozenset[str]


def offered_tools(tools: list[wire.Tool]) -> OfferedTools:
    """The tools that clients run themselves. The others are left out, and logged.

    Raises:
        InvalidRequest: a tool has no name or one that is taken; `param` names it.
    """
    specs: dict[str, ours.ToolSpec] = {}
    custom: set[str] = set()
    dropped: list[str] = []
    for index, tool in enumerate(tools):
        if tool.type not in ("function", "custom"):
            dropped.append(tool.type[:_MAX_LOGGED_CHARS])
            continue
        where = f"tools[{index}]"
        name = _name(tool, specs, where)
        if tool.type == "custom":
            custom.add(name)
            specs[name] = _custom_function(name, tool)
        else:
            specs[name] = _function(name, tool, where)
    if dropped:
        _log.info("tools left out", extra={"types": ",".join(dropped[:_MAX_LOGGED])})
    return OfferedTools(tuple(specs.values()), frozenset(custom))


def tool_choice(choice: wire.ToolChoice | None) -> ours.ToolChoice:
    """Which tool should be called, if any.

    Raises:
        UnsupportedFeature: it wants a call for certain, or only some of the tools.
    """
    if choice is None:
        return "auto"
    if choice == "auto" or choice == "none":
        return choice
    raise UnsupportedFeature(
        "tool_choice cannot force or restrict calls here; use auto or none.", param="tool_choice"
    )


def custom_input(arguments: str) -> str:
    """What the model gave a custom tool; all it wrote where that is not what was asked for.

    Args:
        arguments: JSON, whole unless the generation was cut off.
    """
    try:
        parsed = msgspec.json.decode(arguments)
    except ValueError:
        return arguments
    text = parsed.get(CUSTOM_ARGUMENT) if isinstance(parsed, dict) else None
    return text if isinstance(text, str) else arguments


def _name(tool: wire.Tool, taken: Iterable[str], where: str) -> str:
    if not tool.name:
        raise InvalidRequest(f"{where}.name is required.", param=f"{where}.name")
    if tool.name in taken:
        raise InvalidRequest(
            f"{where}.name: there is a tool {tool.name[:64]!r} already.", param=f"{where}.name"
        )
    return tool.name


def _function(name: str, tool: wire.Tool, where: str) -> ours.ToolSpec:
    if not tool.parameters:
        return ours.ToolSpec(name, tool.description)
    if tool.parameters.get("type", "object") != "object":
        raise InvalidRequest(
            f"{where}.parameters.type must be object.",
            param=f"{where}.parameters.type",
        )
    return ours.ToolSpec(name, tool.description, tool.parameters)


def _custom_function(name: str, tool: wire.Tool) -> ours.ToolSpec:
    """A function of one text; the grammar of its input becomes part of what it says of itself."""
    description = tool.description or ""
    form = tool.format
    if form is not None and form.definition:
        kind = f"{form.syntax} grammar" if form.syntax else form.type
        description += f"\n\nThe input must follow this {kind}:\n{form.definition}"
    properties = {CUSTOM_ARGUMENT: {"type": "string", "description": "The whole input."}}
    return ours.ToolSpec(
        name,
        description.lstrip("\n") or None,
        {"type": "object", "properties": properties, "required": [CUSTOM_ARGUMENT]},
    )
