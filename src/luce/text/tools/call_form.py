"""CallForm: how a syntax's calls are written, for grammars that force them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.text.call import ToolSpec
from luce.text.json_grammar import json_rule
from luce.text.lark import LarkWriter, literal

_PLAIN_NAME = re.compile(r"[\w.\-/]+(?::[\w.\-/]+)*")
_MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class ForcedTool:
    """A tool whose calls are held to a schema.

    Attributes:
        spec: as the client declared it.
        schema: of the arguments, an object's, as `SchemaReader` gives it.
        input_rule: a rule for the insides of its one argument, a JSON string; empty: the schema
            says it all.
    """

    spec: ToolSpec
    schema: Mapping[str, Any]
    input_rule: str = ""

    @property
    def input_call(self) -> str:
        """An expression for arguments that are the one text with a rule of its own."""
        (name,) = self.schema["properties"]
        before, after = f'{{{json.dumps(name)}: "', '"}'
        return f"{literal(before)} {self.input_rule} {literal(after)}"


ArgumentsWriter = Callable[[LarkWriter, ForcedTool], str]
"""Gives an expression for all of a call's arguments; empty for none."""


def json_arguments(lark: LarkWriter, tool: ForcedTool) -> str:
    """The arguments as one JSON object."""
    return lark.rule(json_rule(dict(tool.schema)))


@dataclass(frozen=True, slots=True)
class CallForm:
    """The texts around a call's name and arguments. Control tokens in them are found by text.

    Attributes:
        trigger: what every block of calls begins with, and text never holds; empty if a block is
            bare JSON, which is a call only as the first thing of an answer.
        before_name: begins a call.
        after_name: between the name and the arguments.
        end: ends a call.
        between: stands between two calls. It must not be the beginning of `closing`: the lexer
            takes the longest of the texts that may come and does not go back.
        opening: stands in front of the first call.
        closing: stands behind the last.
        quotes_name: the name is a JSON string.
        arguments: writes them.
    """

    trigger: str
    before_name: str
    after_name: str
    end: str
    between: str = ""
    opening: str = ""
    closing: str = ""
    quotes_name: bool = False
    arguments: ArgumentsWriter = json_arguments

    def can_hold(self, name: str) -> bool:
        """Whether a tool's name can be told from what stands around it."""
        if self.quotes_name or not self.trigger:
            return bool(name) and name == name.strip()
        return len(name) <= _MAX_NAME_CHARS and _PLAIN_NAME.fullmatch(name) is not None

    def calls(
        self, lark: LarkWriter, tools: Sequence[ForcedTool], *, is_single: bool, skip: str = ""
    ) -> str:
        """An expression for one call or more of any of the tools.

        Args:
            lark: takes the rules.
            tools: at least one.
            is_single: for exactly one.
            skip: leave out this beginning.
        """
        call = lark.rule(" | ".join(self._call(lark, tool, "") for tool in tools))
        opening = lark.text(self.opening.removeprefix(skip))
        first = call
        if skip and not self.opening:
            first = lark.rule(" | ".join(self._call(lark, tool, skip) for tool in tools))
        more = "" if is_single else f"({lark.text(self.between)} {call})*"
        return f"{opening} {first} {more} {lark.text(self.closing)}"

    def _call(self, lark: LarkWriter, tool: ForcedTool, skip: str) -> str:
        if not self.trigger:
            return lark.rule(_bare_call(tool))
        parts = (
            lark.text(self.before_name.removeprefix(skip)),
            literal(self._name(tool.spec.name)),
            lark.text(self.after_name),
            tool.input_call if tool.input_rule else self.arguments(lark, tool),
            lark.text(self.end),
        )
        return lark.rule(" ".join(filter(None, parts)))

    def _name(self, name: str) -> str:
        return json.dumps(name, ensure_ascii=False) if self.quotes_name else name


def _bare_call(tool: ForcedTool) -> str:
    """The whole call is JSON, so that nothing outside it competes with an answer in JSON."""
    if tool.input_rule:
        lead = f'{{"name": {json.dumps(tool.spec.name)}, "parameters": '
        return f"{literal(lead)} {tool.input_call} {literal('}')}"
    parameters = dict(tool.schema)
    definitions = parameters.pop("$defs", None)
    call = {
        "type": "object",
        "properties": {"name": {"const": tool.spec.name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
    return json_rule(call if definitions is None else {"$defs": definitions, **call})
