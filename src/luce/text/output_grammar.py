"""OutputGrammar: what a request forces becomes one grammar of the whole output.

Reasoning may come first where the model reasons, and is free; what is forced follows it: calls,
content of a form, or free text in which only calls are held to something.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luce.errors import InvalidGrammar
from luce.protocol.sampling import GrammarSpec
from luce.text.call import AnswerFormat, GenerationCall, ToolSpec
from luce.text.channels import ChannelSpec, ends_in_reasoning
from luce.text.content_grammar import compilable, content_rule, json_path
from luce.text.grammar_compiler import GrammarCompiler
from luce.text.json_grammar import read_schema, read_schema_leniently
from luce.text.lark import ANY_TEXT, LarkWriter, lacking
from luce.text.markup_pattern import markup_pattern
from luce.text.reasoning import ReasoningRequest
from luce.text.schema_error import SchemaError
from luce.text.tokenizer import Tokenizer
from luce.text.tools.call_form import ForcedTool
from luce.text.tools.syntax import ToolSyntax

_log = logging.getLogger(__name__)

_ANSWER = "answer_format"
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


class OutputGrammar:
    """Writes and tries grammars for one model. Threads may share it.

    Args:
        tokenizer: of the model.
        syntax: how the model writes calls.
        compiler: tries what was written.
    """

    def __init__(self, tokenizer: Tokenizer, syntax: ToolSyntax, compiler: GrammarCompiler) -> None:
        self._tokenizer = tokenizer
        self._markup = markup_pattern(tokenizer.control_texts)
        self._syntax = syntax
        if syntax.form is None:
            raise ValueError(f"{syntax.name} is no model's own way of writing calls")
        self._form = syntax.form
        self._compiler = compiler

    def of(
        self,
        call: GenerationCall,
        tools: Sequence[ToolSpec] = (),
        reasoning: ReasoningPlace | None = None,
    ) -> GrammarSpec | None:
        """The grammar of a request's output; None if anything may come.

        Args:
            call: the request.
            tools: those of its tools that may be called.
            reasoning: where reasoning may come; None: nowhere.

        Raises:
            InvalidGrammar: output cannot be held to what is asked for; `param` names where.
        """
        must_call = bool(tools) and call.tool_choice != "auto"
        has_strict = any(tool.is_strict for tool in tools)
        if not must_call and not has_strict and call.answer_format is None:
            return None
        lark = LarkWriter(self._markup, self._tokenizer.control_id)
        parts = []
        if tools:
            parts.append(self._calls(lark, call, tools, must_call=must_call))
        if call.answer_format is not None and not must_call:
            parts.append(self._content(lark, call.answer_format))
        answer = lark.rule(" | ".join(parts))
        source = lark.source(f"{self._lead(lark, reasoning)} {answer}")
        fault = self._compiler.fault(source)
        if fault is not None:
            param = "tools" if tools else _ANSWER
            raise InvalidGrammar(f"The output cannot be forced into this: {fault}.", param=param)
        return GrammarSpec(source)

    def _content(self, lark: LarkWriter, form: AnswerFormat) -> str:
        try:
            return content_rule(lark, form, self._compiler)
        except SchemaError as error:
            raise _refusal(_ANSWER, error, "the answer") from error

    def _calls(
        self, lark: LarkWriter, call: GenerationCall, tools: Sequence[ToolSpec], *, must_call: bool
    ) -> str:
        """Calls alone; or text and calls, where only calls are held to anything."""
        form, is_single = self._form, not call.parallel_tool_calls
        forced = list(self._forced(call, tools))
        calls = form.calls(lark, forced, is_single=is_single)
        if must_call or call.answer_format is not None:
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
        opening = reasoning.channels.opens[0]
        rest = lark.rule(f"{lark.until(reasoning.channels.close)} {_SPACE_BEHIND_REASONING}")
        return rest if reasoning.is_open else f"{space} ({lark.text(opening)} {rest})?"

    def _forced(self, call: GenerationCall, tools: Sequence[ToolSpec]) -> Iterator[ForcedTool]:
        for tool in tools:
            place, whose = f"tools[{call.tools.index(tool)}]", f"tool {tool.name[:64]!r}"
            if not self._form.can_hold(tool.name):
                message = f"The model's calls cannot hold the name of {whose}."
                raise InvalidGrammar(message, param=f"{place}.name")
            try:
                yield ForcedTool(tool, self._parameters(tool))
            except SchemaError as error:
                raise _refusal(f"{place}.parameters", error, whose) from error

    def _parameters(self, tool: ToolSpec) -> Mapping[str, Any]:
        """A tool's schema; one that need not be strict is followed as far as it can be."""
        if tool.is_strict:
            return compilable(_of_object(read_schema(tool.parameters)), self._compiler)
        try:
            schema = _of_object(read_schema_leniently(tool.parameters, tool.name))
            return compilable(schema, self._compiler)
        except SchemaError as error:
            _log.info("tool schema is not enforced", extra={"tool": tool.name, "why": error.why})
            return {"type": "object"}


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


def _refusal(place: str, error: SchemaError, whose: str) -> InvalidGrammar:
    where = f" (at {json_path(error.path)})" if error.path else ""
    return InvalidGrammar(
        f"The schema of {whose} cannot be followed: {error.why}{where}.",
        param=".".join((place, *error.path)),
    )
