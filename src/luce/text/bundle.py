"""TextBundle: all the listener needs to turn requests into prompts and tokens into text."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from luce.errors import InvalidRequest, ModelFileError, TemplateError
from luce.loaders.checkpoint import TextMetadata
from luce.loaders.opening import read_text_metadata
from luce.protocol.sampling import ReasoningBudget
from luce.text import gguf_vocab, tokenizer_json
from luce.text.answer import AnswerForm
from luce.text.bare_prompt import bare_prompt
from luce.text.call import GenerationCall, NamedTool, RawPrompt, ToolSpec
from luce.text.channels import ChannelSpec, ends_in_reasoning, find_channels
from luce.text.detokenizer import Detokenizer
from luce.text.grammar_check import GrammarCheck
from luce.text.markup_guard import MarkupGuard, count_characters
from luce.text.output_grammar import (
    OutputGrammar,
    grammar_order,
    reasoning_place,
)
from luce.text.pipeline import OutputPipeline
from luce.text.prepared_prompt import PreparedPrompt
from luce.text.reasoning import template_variables
from luce.text.template import ChatTemplate
from luce.text.template_messages import message_dicts, tool_dicts
from luce.text.template_source import template_source
from luce.text.template_traits import TemplateTraits
from luce.text.thinking import Thinking, ThinkingOptions
from luce.text.tokenizer import Tokenizer
from luce.text.tool_prompt import with_tools_section
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.hermes import HERMES
from luce.text.tools.parser import CallPlaces, ToolParser
from luce.text.tools.registry import active_syntaxes, find_syntax
from luce.text.tools.syntax import ToolSyntax
from luce.text.vocabulary import TokenVocabulary, token_vocabulary
from luce.units import cut_number, quoted

_NOTHING_SAID = ThinkingOptions()

END_MARKERS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "</s>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
)
"""Texts of control tokens that end a turn or a text in the families we know."""


@dataclass(frozen=True, slots=True)
class TextBundle:
    """Tokenizer, template and text defaults of one model. Immutable, shared by all threads.

    Attributes:
        stop_token_ids: tokens that end a generation, ascending.
        generation_defaults: sampling defaults from the model's files; may be empty.
        context_length: the model's trained context, in tokens.
        vocab_size: rows of the embedding; may exceed the tokenizer's tokens.
        add_bos_id: the begin token that prompts start with, or None.
        traits: what the template knows of tools and reasoning.
        channels: the model's tags of reasoning, or None.
        tool_syntax: how the model writes calls; others are understood as well.
        output_grammar: writes the grammars of what requests force.
        thinking: budgets of its reasoning, and its card.
        weight_types: bytes of the stored weights of each type.
    """

    name: str
    architecture: str
    tokenizer: Tokenizer
    template: ChatTemplate
    stop_token_ids: tuple[int, ...]
    generation_defaults: Mapping[str, float]
    context_length: int
    vocab_size: int
    add_bos_id: int | None
    guard: MarkupGuard
    traits: TemplateTraits
    channels: ChannelSpec | None
    tool_syntax: ToolSyntax
    output_grammar: OutputGrammar
    thinking: Thinking
    weight_types: Mapping[str, int]

    @classmethod
    def load(
        cls,
        path: Path,
        chat_template_file: Path | None = None,
        thinking: ThinkingOptions = _NOTHING_SAID,
    ) -> TextBundle:
        """Read a model's text side; the raw vocabulary is dropped afterwards.

        Args:
            path: GGUF file or Hugging Face folder.
            chat_template_file: Jinja template to use instead of the model's own.
            thinking: what the operator says about it.

        Raises:
            ModelFileError: a file is missing or damaged, the vocabulary is of a kind not served,
                the template has a syntax error, or there is none.
            UsageError: what the operator says does not go together with the model's card.
        """
        return cls.from_metadata(read_text_metadata(path), path, chat_template_file, thinking)

    @classmethod
    def from_metadata(
        cls,
        meta: TextMetadata,
        path: Path,
        chat_template_file: Path | None = None,
        options: ThinkingOptions = _NOTHING_SAID,
    ) -> TextBundle:
        """As `load`, from metadata already read; `path` is for error messages."""
        tokenizer = _build_tokenizer(meta, path)
        source, origin = template_source(meta, tokenizer, path, chat_template_file)
        template = ChatTemplate(source, meta.bos_token, meta.eos_token, origin=origin)
        traits, channels = TemplateTraits.of(source), find_channels(source)
        thinking = Thinking.of(meta.name, meta.architecture, channels, tokenizer, options)
        stop_ids = _stop_token_ids(meta, tokenizer)
        check = GrammarCheck(partial(token_vocabulary, tokenizer, stop_ids, meta.vocab_size))
        syntax = _tool_syntax(traits, source, meta.architecture)
        return cls(
            name=meta.name,
            architecture=meta.architecture,
            tokenizer=tokenizer,
            template=template,
            stop_token_ids=stop_ids,
            generation_defaults=thinking.with_recommended(meta.generation_defaults),
            context_length=meta.context_length,
            vocab_size=meta.vocab_size,
            add_bos_id=_add_bos_id(meta, tokenizer),
            guard=MarkupGuard(tokenizer.control_texts),
            traits=traits,
            channels=channels,
            tool_syntax=syntax,
            output_grammar=OutputGrammar(tokenizer, syntax, check),
            thinking=thinking,
            weight_types=meta.weight_types,
        )

    def prepare(self, call: GenerationCall, limit: int | None = None) -> PreparedPrompt:
        """Render and tokenise a request. Takes milliseconds of CPU; call it from a thread.

        What forces its output to a grammar is left to `with_grammar`.

        Args:
            call: the request.
            limit: a prompt of more tokens is not wanted; much longer ones are refused without
                being tokenised to their end.

        Raises:
            ContextLengthExceeded: more than `limit` tokens for certain. A prompt that is only
                a little longer may still be returned.
            TemplateError: the template refuses the messages, or renders nothing.
            InvalidRequest: the messages are not valid Unicode or nested too deeply, the tool
                choice names no tool, or a raw prompt is empty or has unknown tokens.
        """
        if call.raw_prompts:
            return self._prepare_raw(call, call.raw_prompts[0], limit)
        try:
            rendered, sentinel = self._render(call, limit)
        except RecursionError as error:
            raise InvalidRequest("The messages or tools are nested too deeply") from error
        ids = self._with_bos(self.tokenizer.encode_with_specials(rendered, sentinel, limit))
        if not ids:
            raise TemplateError(
                "The chat template renders these messages to an empty prompt", param="messages"
            )
        channels = self.channels if call.reasoning is not None else None
        in_reasoning = channels is not None and ends_in_reasoning(channels, rendered)
        tools = _callable_tools(call)
        place = None if channels is None else reasoning_place(channels, call.reasoning, rendered)
        order = grammar_order(call, tools, place)
        return PreparedPrompt(
            prompt_bytes=_int32_bytes(ids),
            stop=call.stop,
            stop_token_ids=self._stop_ids(call),
            splits_reasoning=channels is not None,
            in_reasoning=in_reasoning,
            tools=tools,
            is_single_call=not call.parallel_tool_calls,
            order=order,
            calls_first=call.answer_format is not None,
            must_call=order is not None and order.must_call,
            close=self.thinking.close_for(call.reasoning, in_reasoning),
            reports_logprobs=call.sampling.logprobs is not None,
        )

    def with_grammar(self, prepared: PreparedPrompt) -> PreparedPrompt:
        """The same with its grammar, which may take seconds; call it from a thread.

        Raises:
            InvalidGrammar: output cannot be held to what the request forces.
        """
        if prepared.order is None:
            return prepared
        grammar = self.output_grammar.of(prepared.order)
        close = None if prepared.close is None else replace(prepared.close, is_bound=True)
        return replace(prepared, grammar=grammar, order=None, close=close)

    def vocabulary(self) -> TokenVocabulary:
        """The tokens as grammars see them; takes up to half a second."""
        return token_vocabulary(self.tokenizer, self.stop_token_ids, self.vocab_size)

    def pipeline(
        self,
        prepared: PreparedPrompt,
        prompt_tokens: int,
        cached_tokens: int = 0,
        budget: ReasoningBudget | None = None,
    ) -> OutputPipeline:
        """The way of one generation's tokens to events.

        Args:
            prepared: the request.
            prompt_tokens: as reported in usage.
            cached_tokens: how many of them the worker's prefix cache held.
            budget: when the worker closes its reasoning.
        """
        channels = self.channels if prepared.splits_reasoning else None
        is_forced = prepared.grammar is not None
        tools, texts = None, set(() if channels is None else channels.tags)
        if prepared.tools:
            own = self.tool_syntax
            syntaxes = (own,) if is_forced else active_syntaxes(own)
            texts.update(*(syntax.texts for syntax in syntaxes))
            tools = ToolParser(
                syntaxes,
                DeclaredTools(prepared.tools),
                is_single=prepared.is_single_call,
                places=_places(prepared, own),
            )
        return OutputPipeline(
            Detokenizer(self.tokenizer, self.stop_token_ids, self._control_ids(texts)),
            prepared.stop,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            form=AnswerForm(
                channels, prepared.in_reasoning, tools, prepared.reports_logprobs, is_forced
            ),
            budget=budget,
        )

    def _prepare_raw(
        self, call: GenerationCall, prompt: RawPrompt, limit: int | None
    ) -> PreparedPrompt:
        """Token ids are taken as they are; a text gets the begin token it does not have yet."""
        if isinstance(prompt, str):
            if limit is not None:
                self.tokenizer.check_length(len(prompt), limit)
            ids = self._with_bos(self.tokenizer.encode_with_specials(prompt, limit=limit))
        else:
            ids = list(prompt)
            unknown = next((i for i in ids if not 0 <= i < self.vocab_size), None)
            if unknown is not None:
                raise InvalidRequest(
                    f"prompt has token {cut_number(unknown)}; the model's tokens are 0 to "
                    f"{self.vocab_size - 1}.",
                    param="prompt",
                )
        if not ids:
            raise InvalidRequest("prompt must not be empty.", param="prompt")
        return PreparedPrompt(
            _int32_bytes(ids),
            call.stop,
            self._stop_ids(call),
            order=grammar_order(call),
            reports_logprobs=call.sampling.logprobs is not None,
        )

    def _with_bos(self, ids: list[int]) -> list[int]:
        if self.add_bos_id is None or ids[:1] == [self.add_bos_id]:
            return ids
        return [self.add_bos_id, *ids]

    def _stop_ids(self, call: GenerationCall) -> tuple[int, ...]:
        return () if call.sampling.ignore_eos else self.stop_token_ids

    def _render(self, call: GenerationCall, limit: int | None) -> tuple[str, str]:
        """The prompt's text, and the character that breaks control token texts in it.

        Raises:
            ContextLengthExceeded: the strings alone are far too long; nothing was rendered.
        """
        messages = message_dicts(call.messages, self.traits, self._guarded_channels())
        offered = tool_dicts(call.tools) if call.tool_choice != "none" else []
        variables: dict[str, Any] = {}
        if offered and self.traits.has_tools:
            variables["tools"] = offered
        elif offered:
            messages = with_tools_section(messages, offered)
        if call.reasoning is not None:
            variables |= template_variables(call.reasoning, self.architecture)
        if limit is not None:
            self.tokenizer.check_length(count_characters(messages, variables), limit)
        variables |= call.template_kwargs
        sentinel = self.guard.sentinel_for(messages, variables)
        messages, variables = (self.guard.shield(each, sentinel) for each in (messages, variables))
        rendered = self.template.render(messages, variables)
        if call.ends_bare:
            closed = self.template.render(messages, variables | {"add_generation_prompt": False})
            rendered = bare_prompt(rendered, closed, self.channels)
        return rendered, sentinel

    def _guarded_channels(self) -> ChannelSpec | None:
        """The tags of reasoning if the guard breaks them in messages."""
        if self.channels is None or self.tokenizer.control_id(self.channels.close) is None:
            return None
        return self.channels

    def _control_ids(self, texts: Iterable[str]) -> list[int]:
        ids = map(self.tokenizer.control_id, texts)
        return [token_id for token_id in ids if token_id is not None]


def _places(prepared: PreparedPrompt, own: ToolSyntax) -> CallPlaces:
    """Where the calls of a generation are looked for."""
    if prepared.grammar is None:
        return CallPlaces()
    return CallPlaces.forced(own, comes_first=prepared.calls_first, must_come=prepared.must_call)


def _tool_syntax(traits: TemplateTraits, source: str, architecture: str) -> ToolSyntax:
    if traits.has_tools or traits.has_calls:
        return find_syntax(source, architecture)
    return HERMES  # as `tool_prompt` tells it


def _callable_tools(call: GenerationCall) -> tuple[ToolSpec, ...]:
    choice = call.tool_choice
    if choice == "none":
        return ()
    if not isinstance(choice, NamedTool):
        return call.tools
    named = tuple(tool for tool in call.tools if tool.name == choice.name)
    if not named:
        raise InvalidRequest(
            f"tool_choice names {quoted(choice.name)}, which is not among the tools.",
            param="tool_choice",
        )
    return named


def _int32_bytes(ids: list[int]) -> bytes:
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _build_tokenizer(meta: TextMetadata, path: Path) -> Tokenizer:
    if meta.tokenizer_json is not None:
        return tokenizer_json.load_tokenizer(Path(meta.tokenizer_json))
    if meta.gguf_vocab is None:
        raise ModelFileError(f"{path}: no tokenizer in the file")
    try:
        return gguf_vocab.build_tokenizer(meta.gguf_vocab)
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error


def _stop_token_ids(meta: TextMetadata, tokenizer: Tokenizer) -> tuple[int, ...]:
    marked = (tokenizer.control_id(text) for text in END_MARKERS)
    found = {token_id for token_id in marked if token_id is not None}
    return tuple(sorted(found.union(meta.eos_token_ids)))


def _add_bos_id(meta: TextMetadata, tokenizer: Tokenizer) -> int | None:
    if not meta.add_bos or meta.bos_token is None:
        return None
    return tokenizer.control_id(meta.bos_token)
