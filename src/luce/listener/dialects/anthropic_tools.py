"""Tools of Messages requests: told of at the start, or kept back until a message refers to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from luce.errors import InvalidRequest, UnsupportedFeature
from luce.listener.dialects import anthropic_wire as wire
from luce.listener.dialects.tool_offers import ToolOffer
from luce.text.call import ToolSpec
from luce.text.template_messages import tool_dict
from luce.text.tool_prompt import added_tools, removed_tools
from luce.units import quoted

_CHOICES: dict[str, Literal["auto", "none", "required"]] = {
    "auto": "auto",
    "any": "required",
    "none": "none",
}


class ConversationTools:
    """The tools of one conversation, which its messages change.

    A deferred tool is told of in the message that refers to it, and not where the prompt lists
    tools, so that the prompt goes on as it began. Before that it cannot be called.

    Args:
        tools: as declared.

    Raises:
        InvalidRequest: two have one name, or all are deferred; `param` names what.
        UnsupportedFeature: one runs at its maker's.
    """

    def __init__(self, tools: Sequence[wire.Tool]) -> None:
        self._known: dict[str, tuple[ToolSpec, str]] = {}
        self._callable: set[str] = set()
        for index, tool in enumerate(tools):
            self._declare(tool, f"tools[{index}]")
        if tools and not self._callable:
            raise InvalidRequest(
                "tools: one at least must be there from the start, without defer_loading.",
                param="tools",
            )

    def take(self, block: wire.Block, where: str) -> None:
        """Heed a block that refers to a tool, adds or removes one; others change nothing.

        Args:
            block: with all that its type requires.
            where: the client's path of it.

        Raises:
            InvalidRequest: there is no such tool; `param` names it.
            UnsupportedFeature: it is not about a tool that the client runs.
        """
        if block.type == "tool_reference":
            self._callable.add(self._checked(block.tool_name, f"{where}.tool_name"))
        elif block.type == "tool_addition":
            self._add(_changed(block), f"{where}.tool")
        elif block.type == "tool_removal":
            self._callable.discard(self._referred(_changed(block), f"{where}.tool"))

    def told(self, blocks: Iterable[wire.Block]) -> str:
        """What the model reads of the changes in blocks that were taken; "" for none."""
        added: list[ToolSpec] = []
        removed: list[str] = []
        for block in blocks:
            if block.type == "tool_reference":
                added.append(self._known[block.tool_name or ""][0])
            elif block.type == "tool_addition":
                added.append(self._known[_name(_changed(block))][0])
            elif block.type == "tool_removal":
                removed.append(_name(_changed(block)))
        texts = [added_tools(map(tool_dict, added))] if added else []
        texts += [removed_tools(removed)] if removed else []
        return "\n\n".join(texts)

    def offer(self, choice: wire.ToolChoice | None) -> ToolOffer:
        """What can be called after all messages, and which of it should be.

        Raises:
            InvalidRequest: a tool is wanted that is not there.
        """
        tools = {name: tool for name, tool in self._known.items() if name in self._callable}
        offer = ToolOffer(tools)
        if choice is None:
            return offer
        if choice.type != "tool":
            return offer.choosing(_CHOICES[choice.type])
        if choice.name is None:
            raise InvalidRequest("tool_choice.name is required.", param="tool_choice.name")
        if choice.name in self._known and choice.name not in tools:
            raise InvalidRequest(
                f"tool_choice.name: {quoted(choice.name)} is deferred or removed, so the model "
                "does not know of it.",
                param="tool_choice.name",
            )
        return offer.naming(choice.name, "tool_choice.name")

    def _declare(self, tool: wire.Tool, where: str) -> None:
        if tool.name in self._known:
            raise InvalidRequest(
                f"{where}.name: there is a tool {quoted(tool.name)} already.", param=f"{where}.name"
            )
        spec = _spec(tool, where)
        self._known[tool.name] = spec, f"{where}.input_schema"
        if not spec.is_deferred:
            self._callable.add(tool.name)

    def _add(self, tool: wire.ChangedTool, where: str) -> None:
        if tool.type != "tool_definition":
            self._callable.add(self._referred(tool, where))
            return
        where = f"{where}.definition"
        if tool.definition is None:
            raise InvalidRequest(f"{where} is required.", param=where)
        spec = replace(_spec(tool.definition, where), is_deferred=True)
        self._known[spec.name] = spec, f"{where}.input_schema"
        self._callable.add(spec.name)

    def _referred(self, tool: wire.ChangedTool, where: str) -> str:
        if tool.type != "tool_reference":
            raise UnsupportedFeature(
                f"{where}.type: {quoted(tool.type)} is not supported here.", param=f"{where}.type"
            )
        return self._checked(tool.name, f"{where}.name")

    def _checked(self, name: str | None, where: str) -> str:
        if name is None:
            raise InvalidRequest(f"{where} is required.", param=where)
        if name not in self._known:
            raise InvalidRequest(
                f"{where} names {quoted(name)}, which is not among the tools.", param=where
            )
        return name


def _changed(block: wire.Block) -> wire.ChangedTool:
    return block.tool or wire.ChangedTool("")


def _name(tool: wire.ChangedTool) -> str:
    """The name in a change that was taken."""
    definition = tool.definition if tool.type == "tool_definition" else None
    return definition.name if definition is not None else tool.name or ""


def _spec(tool: wire.Tool, where: str) -> ToolSpec:
    if tool.input_schema is None:
        raise UnsupportedFeature(
            f"{where}.input_schema: only tools that have one are supported here.",
            param=f"{where}.input_schema",
        )
    return ToolSpec(
        tool.name,
        tool.description,
        tool.input_schema,
        is_strict=tool.strict is True,
        is_deferred=tool.defer_loading is True,
    )
