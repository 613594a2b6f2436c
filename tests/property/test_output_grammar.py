"""What a grammar lets a model write is what our own parsers read: calls and content, as forced.

A model without sense walks through the grammar's masks: at each step any allowed token may come.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import llguidance
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from luce.grammar import GrammarVocabulary
from luce.loaders.checkpoint import TextMetadata
from luce.testing import tiny_tokenizer
from luce.testing.grammars import grammar_tokenizer
from luce.text.bundle import TextBundle
from luce.text.call import (
    AnswerFormat,
    ChatMessage,
    GenerationCall,
    JsonFormat,
    LarkFormat,
    NamedTool,
    RegexFormat,
    ToolSpec,
)
from luce.text.events import Finished, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStarted
from luce.text.gguf_vocab import TokenType
from luce.text.prepared_prompt import PreparedPrompt
from luce.text.reasoning import ReasoningRequest

MAX_TOKENS = 700
USER = (ChatMessage("user", "Hi"),)

# Templates that show no more than how calls and reasoning are written.
MARKS = {
    "hermes": "{{ tools }}<tool_call>",
    "qwen_xml": "{{ tools }}<tool_call><function=",
    "glm": "{{ tools }}<tool_call><arg_key>",
    "llama3": '{{ tools }}"parameters": ',
    "mistral": "{{ tools }}[TOOL_CALLS]",
    "mistral_args": "{{ tools }}[TOOL_CALLS][ARGS]",
    "deepseek": "{{ tools }}<｜tool▁call▁begin｜>```json",
    "deepseek_v31": "{{ tools }}<｜tool▁call▁begin｜>",
    "dsml": "{{ tools }}<｜DSML｜tool_calls>",
    "dsml_v32": "{{ tools }}<｜DSML｜function_calls>",
    "gemma": "{{ tools }}<|tool_call>",
    "invoke": "{{ tools }}<invoke",
}
CONTROL = tuple(
    "<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> [TOOL_CALLS] [ARGS] "
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> "
    '<｜tool▁sep｜> ｜DSML｜ <|tool_call> <tool_call|> <|"|> <think> </think> <|channel> '
    "<channel|> <|python_tag|>".split()
)
REASONING = {
    "none": "",
    "think": "{{ '<think>' if false }}",
    "open": "<think>\n",
    "closed": "<think>\n\n</think>\n\n",
    "gemma": "{{ '<|channel>' if false }}",
}

ADD = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": -5, "maximum": 500},
        "b": {"type": ["number", "null"]},
        "on": {"type": "boolean"},
    },
    "required": ["a"],
    "additionalProperties": False,
}
WRITE = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 12},
        "mode": {"enum": ["fast", "slow", "<b>"]},
        "size": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "code": {"type": "string", "pattern": "^[a-c]{1,3}-[0-9]+$"},
    },
    "required": ["text", "mode", "code"],
}
NESTED = {
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "name": {"type": "string", "minLength": 1}},
            "required": ["x", "name"],
            "additionalProperties": False,
        }
    },
    "type": "object",
    "properties": {
        "points": {"type": "array", "items": {"$ref": "#/$defs/point"}, "maxItems": 2},
        "one": {"$ref": "#/$defs/point"},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        "kind": {"const": "k<\n"},
    },
    "required": ["points", "note"],
    "additionalProperties": False,
}
ODD = {
    "anyOf": [
        {"type": "object", "properties": {"u": {"type": "string", "format": "date"}}},
        {"type": "object", "properties": {"v v": {"type": "array", "items": {"type": "null"}}}},
    ],
    "type": "object",
    "additionalProperties": False,
}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "string", "maxLength": 3},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
            },
            "required": ["v"],
            "additionalProperties": False,
        }
    },
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "free": {"type": "string", "maxLength": 9}},
    "required": ["root"],
    "additionalProperties": False,
}
TOOLS = {
    name: ToolSpec(name, None, schema, is_strict=True)
    for name, schema in {
        "add": ADD, "write": WRITE, "nested": NESTED, "odd": ODD, "empty": EMPTY, "tree": TREE,
    }.items()
}  # fmt: skip
PATCH = LarkFormat(
    'start: "<patch>\\n" line+ end?\n'
    'line: ("+" | "-" | "</parameter></tool_call>" ) /[^\\n]{0,5}/ LF\n'
    'end: "\\\\" /["<>\\n]/ "}"\n%import common.LF\n'
)
"""Of lines that look like the ends of calls."""
TOOLS["patch"] = ToolSpec(
    "patch",
    None,
    {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    },
    is_strict=True,
    input_grammar=PATCH,
)
BYTES = GrammarVocabulary([bytes([byte]) for byte in range(256)], [], [])
ANSWER = {
    "type": "object",
    "properties": {"t": {"type": "string", "maxLength": 8}, "name": {"const": "add"}},
    "required": ["t"],
    "additionalProperties": False,
}


@dataclass
class Heard:
    """What the pipeline made of an output."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    reason: str = ""


@cache
def make_bundle(syntax: str, reasoning: str, has_control: bool) -> tuple[TextBundle, Any]:
    """A model that writes so, over a vocabulary of bytes, and its grammars' tokenizer."""
    control = CONTROL if has_control else ()
    tokens = [*tiny_tokenizer.TOKENS[:3], *tiny_tokenizer.byte_characters(), *control]
    kinds = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * 256
    meta = TextMetadata(
        container="gguf",
        architecture="llama",
        name="walker",
        context_length=4096,
        vocab_size=len(tokens),
        chat_template=f"{{# {MARKS[syntax]} #}}{{{{ tools }}}}<|im_start|>{REASONING[reasoning]}",
        eos_token_ids=(2,),
        gguf_vocab={
            "model": "gpt2",
            "pre": "smollm",
            "tokens": tokens,
            "token_type": kinds + [TokenType.CONTROL] * len(control),
            "merges": [],
            "eos_token_id": 2,
            "add_bos_token": False,
        },
    )
    bundle = TextBundle.from_metadata(meta, Path("walker.gguf"))
    return bundle, grammar_tokenizer(bundle.vocabulary())


def walk(bundle: TextBundle, tokenizer: Any, lark: str, seed: int) -> list[int] | None:
    """Tokens of a complete output, or None: it did not come to an end."""
    rng = random.Random(seed)
    free = '%llguidance {"no_forcing": true}\n'
    matcher = llguidance.LLMatcher(tokenizer, free + lark, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    marks = {bundle.tokenizer.encode(mark)[0] for mark in '"}]>/<\n,'}
    marks |= bundle.tokenizer.special_ids
    ends = set(bundle.stop_token_ids)
    haste, output = rng.choice((0.2, 0.6, 0.9)), []
    for _ in range(MAX_TOKENS):
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(bundle.vocab_size) if mask[i >> 3] >> (i & 7) & 1]
        assert allowed, "nothing may follow"
        is_end = ends <= set(allowed)
        if is_end and (rng.random() < haste or len(allowed) == len(ends)):
            return output
        allowed = [token_id for token_id in allowed if token_id not in ends]
        hurried = [token_id for token_id in allowed if token_id in marks]
        token_id = rng.choice(hurried if hurried and rng.random() < haste else allowed)
        assert matcher.consume_token(token_id)
        output.append(token_id)
    return None


def prepare(bundle: TextBundle, call: GenerationCall) -> PreparedPrompt:
    return bundle.with_grammar(bundle.prepare(call))


def listen(bundle: TextBundle, prepared: PreparedPrompt, output: Sequence[int]) -> Heard:
    pipeline = bundle.pipeline(prepared, 1)
    heard = Heard()
    for event in [*pipeline.feed(output), *pipeline.feed((), "stop")]:
        match event:
            case TextDelta(text=text):
                heard.content += text
            case ReasoningDelta(text=text):
                heard.reasoning += text
            case ToolCallStarted(call_id=call_id, name=name):
                heard.calls.append((name, ""))
                heard.ids.add(call_id)
            case ToolCallDelta(arguments=more):
                name, arguments = heard.calls[-1]
                heard.calls[-1] = (name, arguments + more)
            case Finished(reason=reason):
                heard.reason = reason
    return heard


def plain_json(text: str) -> Any:
    """Without numbers that only JSON has: 1e999."""
    return json.loads(text, parse_float=lambda digits: min(max(float(digits), -1e300), 1e300))


def check_calls(heard: Heard, tools: Sequence[ToolSpec]) -> None:
    schemas = {tool.name: tool.parameters for tool in tools}
    grammars = {tool.name: tool.input_grammar for tool in tools if tool.input_grammar is not None}
    assert len(heard.ids) == len(heard.calls)
    for name, arguments in heard.calls:
        assert name in schemas
        jsonschema_rs.validator_for(schemas[name]).validate(plain_json(arguments))
        if name in grammars:
            text = list(plain_json(arguments)["input"].encode())
            matcher = BYTES.compile(grammars[name].source)
            assert matcher.try_consume_tokens(text) == len(text)
            assert matcher.is_accepting()


SYNTAX = st.sampled_from(sorted(MARKS))
PLACES = st.sampled_from(sorted(REASONING))
SOME_TOOLS = st.lists(st.sampled_from(sorted(TOOLS)), min_size=1, max_size=3, unique=True)
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@QUICK
@given(SYNTAX, PLACES, st.booleans(), SOME_TOOLS, st.booleans(), st.integers(0, 2**32))
def test_required_calls_are_read_back(
    syntax: str, place: str, has_control: bool, names: list[str], is_single: bool, seed: int
) -> None:
    bundle, tokenizer = make_bundle(syntax, place, has_control)
    tools = tuple(TOOLS[name] for name in names)
    choice = NamedTool(names[0]) if len(names) == 1 and seed % 2 else "required"
    call = GenerationCall(
        None,
        USER,
        tools=tools,
        tool_choice=choice,  # type: ignore[arg-type]
        parallel_tool_calls=not is_single,
        reasoning=ReasoningRequest(),
    )
    prepared = prepare(bundle, call)
    assert prepared.grammar is not None
    output = walk(bundle, tokenizer, prepared.grammar.lark, seed)
    assume(output is not None)
    heard = listen(bundle, prepared, output or ())
    assert heard.calls
    assert heard.content == ""
    assert heard.reason == "tool_calls"
    assert not is_single or len(heard.calls) == 1
    check_calls(heard, tools)


@QUICK
@given(SYNTAX, PLACES, st.booleans(), SOME_TOOLS, st.integers(0, 2**32))
def test_text_and_strict_calls(
    syntax: str, place: str, has_control: bool, names: list[str], seed: int
) -> None:
    bundle, tokenizer = make_bundle(syntax, place, has_control)
    tools = tuple(TOOLS[name] for name in names)
    prepared = prepare(
        bundle, GenerationCall(None, USER, tools=tools, reasoning=ReasoningRequest())
    )
    assert prepared.grammar is not None
    output = walk(bundle, tokenizer, prepared.grammar.lark, seed)
    assume(output is not None)
    check_calls(listen(bundle, prepared, output or ()), tools)


FORMATS: list[AnswerFormat] = [
    JsonFormat(),
    JsonFormat(ANSWER),
    RegexFormat("[a-z<>/{]{1,9}"),
    LarkFormat('start: item+\nitem: "x<think>" | "{" NUMBER "}"\nNUMBER: /[0-9]/\n%ignore " "'),
]


@QUICK
@given(
    SYNTAX, PLACES, st.booleans(), st.sampled_from(FORMATS), st.booleans(), st.integers(0, 2**32)
)
def test_content_of_a_form_beside_tools(
    syntax: str, place: str, has_control: bool, form: AnswerFormat, has_tools: bool, seed: int
) -> None:
    bundle, tokenizer = make_bundle(syntax, place, has_control)
    tools = (TOOLS["add"], TOOLS["empty"]) if has_tools else ()
    prepared = prepare(
        bundle,
        GenerationCall(None, USER, tools=tools, answer_format=form, reasoning=ReasoningRequest()),
    )
    assert prepared.grammar is not None
    output = walk(bundle, tokenizer, prepared.grammar.lark, seed)
    assume(output is not None)
    heard = listen(bundle, prepared, output or ())
    check_calls(heard, tools)
    assert bool(heard.calls) != bool(heard.content)
    if isinstance(form, JsonFormat) and heard.content:
        schema = form.schema or {"type": "object"}
        jsonschema_rs.validator_for(schema).validate(plain_json(heard.content))


@pytest.mark.parametrize("syntax", sorted(MARKS))
@pytest.mark.parametrize("has_control", [False, True])
def test_each_syntax_is_walked_to_the_end(syntax: str, has_control: bool) -> None:
    """So that the properties above are not about nothing."""
    bundle, tokenizer = make_bundle(syntax, "none", has_control)
    tools = (TOOLS["add"], TOOLS["write"])
    if has_control:
        tools = (TOOLS["patch"],)
    prepared = prepare(bundle, GenerationCall(None, USER, tools=tools, tool_choice="required"))
    assert prepared.grammar is not None
    ends = [walk(bundle, tokenizer, prepared.grammar.lark, seed) for seed in range(12)]
    assert sum(output is not None for output in ends) >= 6
