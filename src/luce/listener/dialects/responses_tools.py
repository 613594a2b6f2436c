"""Tools of Responses requests: functions, custom tools as functions, the others left out.

A namespace groups tools. Models know no groups, so its tools are functions with its name in front
of theirs. Its description is told with the first of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects import responses_wire as wire
from luce.listener.dialects.tool_offers import ToolOffer
from luce.text.call import LarkFormat, RegexFormat, ToolSpec
from luce.units import cut, quoted

_log = logging.getLogger(__name__)

CUSTOM_ARGUMENT = "input"
"""The one argument of the function that stands for a custom tool."""

_OURS = ("function", "custom")
"""Types of tools that clients run."""
_NAMESPACE = "namespace"
_JOINT = "__"
"""Between the names of a namespace and of its tool; never parsed."""

_MAX_LOGGED = 8
_MAX_LOGGED_CHARS = 64


@dataclass(frozen=True, slots=True)
class ClientTool:
    """What the client calls a tool.

    Attributes:
        namespace: the group it is in.
        is_custom: a custom tool, to us a function of one text.
    """

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def our_name(self) -> str:
        """The function's name for the model."""
        return self.name if self.namespace is None else f"{self.namespace}{_JOINT}{self.name}"


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that the model is told of.

    Attributes:
        offer: as functions, and which should be called.
        client_tools: by our names, also of those that are not allowed.
    """

    offer: ToolOffer
    client_tools: Mapping[str, ClientTool]

    @property
    def names(self) -> dict[str, str]:
        """Their part of `GenerationCall.client_names`."""
        names = self.offer.names
        for index, spec in enumerate(self.offer.specs):
            if self.client_tools[spec.name].is_custom:
                ours = f"tools[{index}].parameters"
                theirs = f"{names[ours]}.definition"
                names[f"{ours}.properties.{CUSTOM_ARGUMENT}.pattern"] = theirs
                if spec.input_grammar is not None:
                    names[f"tools[{index}].input_grammar"] = theirs
        return names


@dataclass(frozen=True, slots=True)
class _Declared:
    """A tool where it stands in the request."""

    tool: wire.Tool
    where: str
    namespace: wire.Tool | None = None
    is_first: bool = True


def offered_tools(tools: list[wire.Tool], choice: wire.ToolChoice | None = None) -> OfferedTools:
    """The tools that clients run themselves. The others are left out, and logged.

    Raises:
        InvalidRequest: a tool has no name or one that is taken, or one is wanted that is not
            there; `param` names it.
        UnsupportedFeature: a tool is wanted that runs at its maker's.
    """
    specs: dict[str, tuple[ToolSpec, str]] = {}
    client_tools: dict[str, ClientTool] = {}
    dropped: list[str] = []
    for declared in _declared(tools):
        tool, where = declared.tool, declared.where
        if tool.type not in _OURS:
            dropped.append(cut(tool.type, _MAX_LOGGED_CHARS))
            continue
        client_tool = _client_tool(declared, client_tools)
        name = client_tool.our_name
        client_tools[name] = client_tool
        if client_tool.is_custom:
            spec, schema = _custom_function(name, tool, where), f"{where}.format"
        else:
            spec, schema = _function(name, tool, where), f"{where}.parameters"
        specs[name] = _introduced(spec, declared), schema
    if dropped:
        _log.info("tools left out", extra={"types": ",".join(dropped[:_MAX_LOGGED])})
    return OfferedTools(_chosen(ToolOffer(specs), choice, client_tools), client_tools)


def _declared(tools: Iterable[wire.Tool]) -> Iterator[_Declared]:
    """All tools, those of namespaces in the place of their namespace."""
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.type != _NAMESPACE:
            yield _Declared(tool, where)
            continue
        _require_name(tool, where)
        for position, inner in enumerate(tool.tools or ()):
            place = f"{where}.tools[{position}]"
            if inner.type == _NAMESPACE:
                raise InvalidRequest(
                    f"{place}.type: a namespace cannot hold another.", param=f"{place}.type"
                )
            yield _Declared(inner, place, tool, position == 0)


def _introduced(spec: ToolSpec, declared: _Declared) -> ToolSpec:
    """With what the namespace says of itself, for its first tool."""
    about = declared.namespace.description if declared.namespace is not None else None
    if not about or not declared.is_first:
        return spec
    return replace(spec, description=f"{about}\n\n{spec.description or ''}".rstrip())


def _chosen(
    offer: ToolOffer, choice: wire.ToolChoice | None, tools: Mapping[str, ClientTool]
) -> ToolOffer:
    if choice is None:
        return offer
    if isinstance(choice, str):
        return offer.choosing(choice)
    if choice.type == "allowed_tools":
        return _allowed(offer, choice, tools)
    if choice.type not in _OURS:
        raise UnsupportedFeature(
            f"tool_choice.type: no tool of type {quoted(choice.type)} runs here.",
            param="tool_choice.type",
        )
    return offer.naming(_chosen_name(choice, "tool_choice"), "tool_choice.name")


def _allowed(
    offer: ToolOffer, choice: wire.ChosenTool, tools: Mapping[str, ClientTool]
) -> ToolOffer:
    """Tools that run at their makers' are left out here as well."""
    if choice.mode is None:
        raise InvalidRequest("tool_choice.mode is required.", param="tool_choice.mode")
    where = "tool_choice.tools"
    names: set[str] = set()
    for index, tool in enumerate(choice.tools or ()):
        if tool.type == _NAMESPACE:
            names.update(_names_in(tool, tools, f"{where}[{index}]"))
        elif tool.type in _OURS:
            names.add(_chosen_name(tool, f"{where}[{index}]"))
    return offer.allowing(names, choice.mode, where)


def _chosen_name(tool: wire.ToolName, where: str) -> str:
    return ClientTool(_require_name(tool, where), tool.namespace).our_name


def _names_in(
    namespace: wire.ToolName, tools: Mapping[str, ClientTool], where: str
) -> Iterator[str]:
    wanted = _require_name(namespace, where)
    found = [name for name, tool in tools.items() if tool.namespace == wanted]
    if not found:
        raise InvalidRequest(
            f"{where}.name: there are no tools in a namespace {quoted(wanted)}.",
            param=f"{where}.name",
        )
    yield from found


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


def _client_tool(declared: _Declared, taken: Iterable[str]) -> ClientTool:
    tool, where, namespace = declared.tool, declared.where, declared.namespace
    found = ClientTool(
        _require_name(tool, where),
        namespace.name if namespace is not None else None,
        is_custom=tool.type == "custom",
    )
    if found.our_name in taken:
        raise InvalidRequest(
            f"{where}.name: there is a tool {quoted(found.our_name)} already.",
            param=f"{where}.name",
        )
    return found


def _require_name(tool: wire.Tool | wire.ToolName, where: str) -> str:
    if not tool.name:
        raise InvalidRequest(f"{where}.name is required.", param=f"{where}.name")
    return tool.name


def _function(name: str, tool: wire.Tool, where: str) -> ToolSpec:
    is_strict = tool.strict is True
    if not tool.parameters:
        return ToolSpec(name, tool.description, is_strict=is_strict)
    if tool.parameters.get("type", "object") != "object":
        raise InvalidRequest(
            f"{where}.parameters.type must be object.",
            param=f"{where}.parameters.type",
        )
    return ToolSpec(name, tool.description, tool.parameters, is_strict)


def _custom_function(name: str, tool: wire.Tool, where: str) -> ToolSpec:
    """A function of one text; the grammar of its input becomes part of what it says of itself.

    Raises:
        InvalidRequest: its format is none that there is.
    """
    description = tool.description or ""
    argument = {"type": "string", "description": "The whole input."}
    form = _grammar_of(tool, where)
    if form is not None:
        kind = "regex" if isinstance(form, RegexFormat) else "lark"
        text = form.pattern if isinstance(form, RegexFormat) else form.source
        description += f"\n\nThe input must follow this {kind} grammar:\n{text}"
        if isinstance(form, RegexFormat):
            argument["pattern"] = f"^(?:{text})$"
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {CUSTOM_ARGUMENT: argument},
        "required": [CUSTOM_ARGUMENT],
        "additionalProperties": False,
    }
    return ToolSpec(
        name,
        description.lstrip("\n") or None,
        schema,
        is_strict=form is not None,
        input_grammar=form if isinstance(form, LarkFormat) else None,
    )


def _grammar_of(tool: wire.Tool, where: str) -> LarkFormat | RegexFormat | None:
    form, place = tool.format, f"{where}.format"
    if form is None or form.type == "text":
        return None
    if form.type != "grammar":
        raise InvalidRequest(f"{place}.type must be text or grammar.", param=f"{place}.type")
    if not form.definition:
        raise InvalidRequest(f"{place}.definition is required.", param=f"{place}.definition")
    if form.syntax == "regex":
        return RegexFormat(form.definition)
    if form.syntax == "lark":
        return LarkFormat(form.definition)
    raise InvalidRequest(f"{place}.syntax must be lark or regex.", param=f"{place}.syntax")
