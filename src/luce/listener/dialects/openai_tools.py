"""Tools of chat requests, and which of them should be called."""

from __future__ import annotations

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects import openai_wire as wire
from luce.listener.dialects.tool_offers import ToolOffer
from luce.text.call import ToolSpec
from luce.units import quoted


def tools_on_offer(request: wire.ChatRequest) -> ToolOffer:
    """The tools, and which should be called.

    Raises:
        InvalidRequest: a tool has no name or one that is taken, its parameters are no object, or
            a tool is wanted that is not there; `param` names what.
        UnsupportedFeature: a tool is no function.
    """
    tools: dict[str, tuple[ToolSpec, str]] = {}
    for index, tool in enumerate(request.tools or ()):
        where = f"tools[{index}]"
        function = _function(tool, where)
        if function.name in tools:
            raise InvalidRequest(
                f"{where}.function.name: there is a tool {quoted(function.name)} already.",
                param=f"{where}.function.name",
            )
        tools[function.name] = _spec(function, where), f"{where}.function.parameters"
    return _chosen(ToolOffer(tools), request.tool_choice)


def _chosen(offer: ToolOffer, choice: wire.ToolChoice | None) -> ToolOffer:
    if choice is None:
        return offer
    if isinstance(choice, str):
        return offer.choosing(choice)
    if choice.type != "allowed_tools":
        return offer.naming(_name(choice, "tool_choice"))
    allowed = choice.allowed_tools
    if allowed is None:
        raise InvalidRequest(
            "tool_choice.allowed_tools is required.", param="tool_choice.allowed_tools"
        )
    where = "tool_choice.allowed_tools.tools"
    names = {_name(tool, f"{where}[{index}]") for index, tool in enumerate(allowed.tools)}
    return offer.allowing(names, allowed.mode, where)


def _name(tool: wire.ToolName, where: str) -> str:
    if tool.type != "function":
        raise UnsupportedFeature(
            f"{where}.type: only functions are supported here, not {quoted(tool.type)}.",
            param=f"{where}.type",
        )
    if tool.function is None:
        raise InvalidRequest(f"{where}.function is required.", param=f"{where}.function")
    return tool.function.name


def _spec(function: wire.FunctionSpec, where: str) -> ToolSpec:
    parameters, is_strict = function.parameters, function.strict is True
    if not parameters:
        return ToolSpec(function.name, function.description, is_strict=is_strict)
    if parameters.get("type", "object") != "object":
        raise InvalidRequest(
            f"{where}.function.parameters must be the schema of an object.",
            param=f"{where}.function.parameters.type",
        )
    return ToolSpec(function.name, function.description, parameters, is_strict)


def _function(tool: wire.Tool, where: str) -> wire.FunctionSpec:
    if tool.type != "function":
        raise UnsupportedFeature(
            f"{where}: tools of type {quoted(tool.type)} are not supported here, only functions.",
            param=f"{where}.type",
        )
    if tool.function is None:
        raise InvalidRequest(f"{where}.function is required.", param=f"{where}.function")
    if not tool.function.name:
        raise InvalidRequest(
            f"{where}.function.name must not be empty.", param=f"{where}.function.name"
        )
    return tool.function
