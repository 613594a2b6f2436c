"""OutputGrammar: what a request forces becomes one grammar of the whole output.

Reasoning may come first where the model reasons, and is free; what is forced follows it: calls,
content of a form, or free text in which only calls are held to something.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from luce.errors import InvalidGrammar
from luce.protocol.sampling import GrammarSpec
from luce.text.call import AnswerFormat, GenerationCall, NamedTool, ToolSpec
from luce.text.channels import ChannelSpec, ends_in_reasoning
from luce.text.content_grammar import (
    check_lark,
    check_wide_parts,
    content_fault,
    content_rule,
    faulty_part,
    input_rule,
    json_path,
    noun,
    schema_source,
)
from luce.text.grammar_check import GrammarCheck
from luce.text.json_grammar import read_schema, read_schema_leniently
from luce.text.lark import ANY_TEXT, LarkWriter, lacking
from luce.text.markup_pattern import markup_pattern
from luce.text.reasoning import ReasoningRequest
from luce.text.schema_error import SchemaError
from luce.text.tokenizer import Tokenizer
from luce.text.tools.call_form import ForcedTool
from luce.text.tools.syntax import ToolSyntax
from luce.units import quoted

_log = logging.getLogger(__name__)

_ANSWER = "answer_format"
_ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
_SPACE_BEHIND_REASONING = r"/[ \n]{0,4}/"
_NO_BARE_CALL = r"/(?s:[^\s{\[].*)?/"
"""Text that is not taken for a call where nothing but its first character announces one."""


@dataclass(frozen=True, slots=True)
class ReasoningPlace:
    """Where reasoning can stand in an output.

    Attributes:
        channels: the model's tags.
        is_open: the prompt ends inside reasoning; else the model may begin it.
    """

    channels: ChannelSpec
    is_open: bool


@dataclass(frozen=True, slots=True)
class GrammarOrder:
    """What one request's grammar is to be made of.

    Attributes:
        call: the request.
        tools: those of its tools that may be called.
        reasoning: where reasoning may come; None: nowhere.
        num_chars: size of the schemas and grammars; above 0.
        loose: names of tools whose arguments are any object.
    """

    call: GenerationCall
    tools: Sequence[ToolSpec] = ()
    reasoning: ReasoningPlace | None = None
    num_chars: int = 1
    loose: frozenset[str] = frozenset()

    @property
    def must_call(self) -> bool:
        """Whether calls must come."""
        return bool(self.tools) and self.call.tool_choice != "auto"

    @property
    def content(self) -> AnswerFormat | None:
        """The form content is held to, where content may come."""
        return None if self.must_call else self.call.answer_format

    def place(self, tool: ToolSpec) -> str:
        """Where a tool stands in the request."""
        return f"tools[{self.call.tools.index(tool)}]"


def grammar_order(
    call: GenerationCall,
    tools: Sequence[ToolSpec] = (),
    reasoning: ReasoningPlace | None = None,
) -> GrammarOrder | None:
    """What is to be made a grammar of; None if anything may come; see `GrammarOrder`."""
    order = GrammarOrder(call, tools, reasoning)
    has_strict = any(tool.is_strict for tool in tools)
    if not order.must_call and not has_strict and order.content is None:
        return None
    schemas = (order.content, *((tool.parameters, tool.input_grammar) for tool in tools))
    return replace(order, num_chars=sum(len(repr(schema)) for schema in schemas))


class OutputGrammar:
    """Writes and tries grammars for one model. Threads may share it.

    Args:
        tokenizer: of the model.
        syntax: how the model writes calls.
        check: tries what was written.
    """

    def __init__(self, tokenizer: Tokenizer, syntax: ToolSyntax, check: GrammarCheck) -> None:
        self._tokenizer = tokenizer
        self._markup = markup_pattern(tokenizer.control_texts)
        self._syntax = syntax
        if syntax.form is None:
            raise ValueError(f"{syntax.name} is no model's own way of writing calls")
        self._form = syntax.form
        self._check = check

    def of(self, order: GrammarOrder) -> GrammarSpec:
        """The grammar of a request's output.

        Raises:
            InvalidGrammar: output cannot be held to what is asked for; `param` names where.
        """
        source, fault = self._tried(order)
        if fault is not None:
            loose = self._loose(order)
            if loose:
                source, fault = self._tried(replace(order, loose=loose))
        if fault is not None:
            raise self._refusal(order, fault)
        return GrammarSpec(source)

    def _tried(self, order: GrammarOrder) -> tuple[str, str | None]:
        """The whole grammar, and why it cannot be followed."""
        lark = LarkWriter(self._markup, self._tokenizer.control_id)
        parts = []
        if order.tools:
            parts.append(self._calls(lark, order))
        if order.content is not None:
            parts.append(self._content(lark, order.content))
        answer = lark.rule(" | ".join(parts))
        source = lark.source(f"{self._lead(lark, order.reasoning)} {answer}")
        lead: list[int] = []
        if order.reasoning is not None and order.reasoning.is_open:
            lead = self._tokenizer.encode_with_specials(order.reasoning.channels.close)
        return source, self._check.fault(source, lead)

    def _refusal(self, order: GrammarOrder, fault: str) -> InvalidGrammar:
        if order.content is not None:
            error = content_fault(order.content, fault, self._check)
            if error.path or not order.tools:
                return _refusal(_ANSWER, error, noun(order.content))
        param = "tools" if order.tools else _ANSWER
        return InvalidGrammar(f"The output cannot be forced into this: {fault}.", param=param)

    def _content(self, lark: LarkWriter, form: AnswerFormat) -> str:
        try:
            return content_rule(lark, form, self._check)
        except SchemaError as error:
            raise _refusal(_ANSWER, error, noun(form)) from error

    def _calls(self, lark: LarkWriter, order: GrammarOrder) -> str:
        """Calls alone; or text and calls, where only calls are held to anything."""
        call, form = order.call, self._form
        # A client that names a tool gets one call of it.
        is_single = not call.parallel_tool_calls or isinstance(call.tool_choice, NamedTool)
        forced = list(self._forced(lark, order))
        calls = form.calls(lark, forced, is_single=is_single)
        if order.must_call or call.answer_format is not None:
            return calls
        if not form.trigger:
            return f"{calls} | {lark.terminal(_NO_BARE_CALL)}"
        triggers = [wrapper.opener for wrapper in self._syntax.wrappers]
        others = {*triggers, *self._syntax.elements} - {form.trigger}
        text = lark.terminal(f"{ANY_TEXT} & {lacking((form.trigger, *sorted(others)))}")
        lead = lark.until(form.trigger, ANY_TEXT, sorted(others))
        rest = form.calls(lark, forced, is_single=is_single, skip=form.trigger)
        return f"{lead} {rest} | {text}"

    def _lead(self, lark: LarkWriter, reasoning: ReasoningPlace | None) -> str:
        """What may stand in front of the answer."""
        space = "/ ?/" if self._tokenizer.leading_space else ""
        if reasoning is None:
            return space
        opening = reasoning.channels.opening
        rest = lark.rule(f"{lark.until(reasoning.channels.close)} {_SPACE_BEHIND_REASONING}")
        return rest if reasoning.is_open else f"{space} ({lark.text(opening)} {rest})?"

    def _forced(self, lark: LarkWriter, order: GrammarOrder) -> Iterator[ForcedTool]:
        for tool in order.tools:
            if not self._form.can_hold(tool.name):
                message = f"The model's calls cannot hold the name of {_whose(tool)}."
                raise InvalidGrammar(message, param=f"{order.place(tool)}.name")
            try:
                parameters = self._parameters(tool, order.loose)
            except SchemaError as error:
                raise _tool_refusal(order, tool, error) from error
            yield ForcedTool(tool, parameters, self._input(lark, order, tool))

    def _input(self, lark: LarkWriter, order: GrammarOrder, tool: ToolSpec) -> str:
        """The rule of a tool's input; empty if it has no grammar.

        Agents send theirs with every turn: one that is right but cannot be written inside a call
        is only told to the model, unless a call must come.
        """
        if tool.input_grammar is None:
            return ""
        is_right = False
        try:
            check_lark(tool.input_grammar.source, self._check)
            is_right = True
            return input_rule(lark, tool.input_grammar, self._check)
        except SchemaError as error:
            if is_right and not order.must_call:
                fields = {"tool": tool.name, "why": error.why}
                _log.info("tool grammar is not enforced", extra=fields)
                return ""
            place = f"{order.place(tool)}.input_grammar"
            raise _refusal(place, error, f"grammar of {_whose(tool)}") from error

    def _parameters(self, tool: ToolSpec, loose: frozenset[str]) -> Mapping[str, Any]:
        """A tool's schema; one that need not be strict is followed as far as it can be."""
        if tool.name in loose:
            return _ANY_ARGUMENTS
        try:
            schema = _parameters_of(tool)
            check_wide_parts(schema, self._check, with_root=True)
        except SchemaError as error:
            if tool.is_strict:
                raise
            _log.info("tool schema is not enforced", extra={"tool": tool.name, "why": error.why})
            return _ANY_ARGUMENTS
        return schema

    def _loose(self, order: GrammarOrder) -> frozenset[str]:
        """Tools whose schemas cannot be followed and need not be.

        Raises:
            InvalidGrammar: one of them is strict.
        """
        loose = set()
        for tool in order.tools:
            try:
                schema = _parameters_of(tool)
            except SchemaError:
                continue  # It was left out already.
            fault = self._check.fault(schema_source(schema))
            if fault is None:
                continue
            if tool.is_strict:
                error = faulty_part(schema, fault, self._check)
                raise _tool_refusal(order, tool, error) from error
            _log.info("tool schema is not enforced", extra={"tool": tool.name, "why": fault})
            loose.add(tool.name)
        return frozenset(loose)


def reasoning_place(
    channels: ChannelSpec, request: ReasoningRequest | None, prompt: str
) -> ReasoningPlace | None:
    """Where an answer to a rendered prompt may reason; None: nowhere.

    Args:
        channels: the model's tags.
        request: what the client says of reasoning.
        prompt: it may end inside reasoning, or in one that is closed already.
    """
    if ends_in_reasoning(channels, prompt):
        return ReasoningPlace(channels, is_open=True)
    is_off = request is None or request.enabled is False
    if is_off or prompt.rstrip().endswith(channels.close.rstrip()):
        return None
    return ReasoningPlace(channels, is_open=False)


def _of_object(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = schema.get("type", "object")
    if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
        raise SchemaError(("type",), "arguments are an object")
    return {**schema, "type": "object"}


def _parameters_of(tool: ToolSpec) -> dict[str, Any]:
    if tool.is_strict:
        return _of_object(read_schema(tool.parameters))
    return _of_object(read_schema_leniently(tool.parameters, tool.name))


def _whose(tool: ToolSpec) -> str:
    return f"tool {quoted(tool.name)}"


def _tool_refusal(order: GrammarOrder, tool: ToolSpec, error: SchemaError) -> InvalidGrammar:
    return _refusal(f"{order.place(tool)}.parameters", error, f"schema of {_whose(tool)}")


def _refusal(place: str, error: SchemaError, what: str) -> InvalidGrammar:
    where = f" (at {json_path(error.path)})" if error.path else ""
    return InvalidGrammar(
        f"The {what} cannot be followed: {error.why}{where}.",
        param=".".join((place, *error.path)),
    )
