"""How grammars force calls: in each model's own way, and nothing that is read otherwise."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest

from luce.testing import tiny_tokenizer
from luce.testing.grammars import grammar_tokenizer
from luce.text.call import ToolSpec
from luce.text.channels import TextPiece
from luce.text.events import ToolCallDelta, ToolCallStarted
from luce.text.gguf_vocab import TokenType, build_tokenizer
from luce.text.json_grammar import read_schema
from luce.text.lark import LarkWriter
from luce.text.markup_pattern import markup_pattern
from luce.text.tokenizer import Tokenizer
from luce.text.tools.call_form import ForcedTool
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.deepseek import DEEPSEEK, DEEPSEEK_V31
from luce.text.tools.gemma import GEMMA
from luce.text.tools.hermes import GLM, HERMES
from luce.text.tools.invoke import DSML, DSML_V32, INVOKE
from luce.text.tools.llama3 import LLAMA3
from luce.text.tools.mistral import MISTRAL, MISTRAL_ARGS
from luce.text.tools.parser import CallPlaces, Piece, ToolParser
from luce.text.tools.qwen_xml import QWEN_XML
from luce.text.tools.syntax import ToolSyntax
from luce.text.vocabulary import token_vocabulary

CONTROL = ("<tool_call>", "</tool_call>", "<｜tool▁sep｜>", "[TOOL_CALLS]", "[ARGS]", "｜DSML｜",
           '<|"|>', "<|tool_call>", "<tool_call|>", "<arg_key>", "</arg_value>")  # fmt: skip

ADD = ToolSpec(
    "add",
    None,
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "x": {"type": "boolean"}},
        "required": ["a", "s"],
    },
)
GET = ToolSpec("get")
EXPECTED: list[tuple[str, dict[str, Any]]] = [("add", {"a": 5, "s": 'q"\n<é'}), ("get", {})]

WRITTEN: dict[str, tuple[ToolSyntax, str]] = {
    "hermes": (
        HERMES,
        '<tool_call>\n{"name": "add", "arguments": {"a": 5, "s": "q\\"\\n<é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>',
    ),
    "qwen_xml": (
        QWEN_XML,
        "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n<parameter=s>\n"
        'q"\n<é\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call>\n<function=get>\n</function>\n</tool_call>",
    ),
    "glm": (
        GLM,
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>5</arg_value>\n<arg_key>s</arg_key>\n"
        '<arg_value>q"\n<é</arg_value>\n</tool_call>\n<tool_call>get\n</tool_call>',
    ),
    "llama3": (
        LLAMA3,
        '{"name": "add", "parameters": {"a": 5, "s": "q\\"\\n<é"}}; '
        '{"name": "get", "parameters": {}}',
    ),
    "mistral": (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 5, "s": "q\\"\\n<é"}}, '
        '{"name": "get", "arguments": {}}]',
    ),
    "mistral_args": (
        MISTRAL_ARGS,
        '[TOOL_CALLS]add[ARGS]{"a": 5, "s": "q\\"\\n<é"}[TOOL_CALLS]get[ARGS]{}',
    ),
    "deepseek": (
        DEEPSEEK,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
        '{"a": 5, "s": "q\\"\\n<é"}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek_v31": (
        DEEPSEEK_V31,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
        '{"a": 5, "s": "q\\"\\n<é"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>get<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "dsml": (
        DSML,
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="add">\n'
        '<｜DSML｜parameter name="a" string="false">5</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="s" string="true">q"\n<é</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="get">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    ),
    "invoke": (
        INVOKE,
        '<function_calls>\n<invoke name="add">\n<parameter name="a">5</parameter>\n'
        '<parameter name="s">q"\n<é</parameter>\n</invoke>\n'
        '<invoke name="get">\n</invoke>\n</function_calls>',
    ),
    "gemma": (
        GEMMA,
        '<|tool_call>call:add{a:5,s:<|"|>q"\n<é<|"|>}<tool_call|><|tool_call>call:get{}<tool_call|>',
    ),
}  # fmt: skip
DSML_OLD = WRITTEN["dsml"][1].replace("tool_calls", "function_calls")
WRITTEN["dsml_v32"] = (DSML_V32, DSML_OLD)
EACH = pytest.mark.parametrize("name", sorted(WRITTEN))
BOTH = pytest.mark.parametrize("has_control", [False, True])


def make_tokenizer(control: tuple[str, ...]) -> Tokenizer:
    tokens = [*tiny_tokenizer.TOKENS[:3], *tiny_tokenizer.byte_characters(), *control]
    kinds = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * len(control)
    vocab = {"model": "gpt2", "pre": "smollm", "tokens": tokens, "token_type": kinds}
    return build_tokenizer({**vocab, "merges": [], "eos_token_id": 2})


TOKENIZERS = {False: make_tokenizer(()), True: make_tokenizer(CONTROL)}
COMPILED = {
    has_control: grammar_tokenizer(token_vocabulary(tokenizer, (2,), tokenizer.vocab_size))
    for has_control, tokenizer in TOKENIZERS.items()
}


def accepts(
    syntax: ToolSyntax, tools: tuple[ToolSpec, ...], text: str, *, has_control: bool = False
) -> bool:
    tokenizer = TOKENIZERS[has_control]
    lark = LarkWriter(markup_pattern(tokenizer.control_texts), tokenizer.control_id)
    assert syntax.form is not None
    forced = [
        ForcedTool(tool, {**read_schema(tool.parameters), "type": "object"}) for tool in tools
    ]
    source = lark.source(syntax.form.calls(lark, forced, is_single=False))
    matcher = llguidance.LLMatcher(COMPILED[has_control], source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode_with_specials(text)
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


def parse(syntax: ToolSyntax, tools: tuple[ToolSpec, ...], text: str) -> list[tuple[str, Any]]:
    parser = ToolParser(
        (syntax,),
        DeclaredTools(tools),
        places=CallPlaces.forced(syntax, comes_first=True, must_come=True),
    )
    pieces: list[Piece] = [
        *parser.feed(TextPiece("content", text)), *parser.finish(is_cut=False)
    ]  # fmt: skip
    assert not any(isinstance(piece, TextPiece) for piece in pieces), pieces
    names = [piece.name for piece in pieces if isinstance(piece, ToolCallStarted)]
    arguments = [""] * len(names)
    for piece in pieces:
        if isinstance(piece, ToolCallDelta):
            arguments[piece.index] += piece.arguments
    return list(zip(names, map(json.loads, arguments), strict=True))


@EACH
@BOTH
def test_a_model_s_own_calls(name: str, has_control: bool) -> None:
    syntax, text = WRITTEN[name]
    assert accepts(syntax, (ADD, GET), text, has_control=has_control)
    assert parse(syntax, (ADD, GET), text) == EXPECTED


def cut_off(syntax: ToolSyntax, text: str, *, must_come: bool) -> list[Piece]:
    """What is read of a forced output that ends with its length."""
    places = CallPlaces.forced(syntax, comes_first=False, must_come=must_come)
    parser = ToolParser((syntax,), DeclaredTools((ADD, GET)), places=places)
    return [*parser.feed(TextPiece("content", text)), *parser.finish(is_cut=True)]


@EACH
def test_wherever_forced_calls_are_cut_off_no_markup_is_shown(name: str) -> None:
    syntax, text = WRITTEN[name]
    num_begun = []
    for end in range(1, len(text)):
        pieces = cut_off(syntax, text[:end], must_come=True)
        assert not any(isinstance(piece, TextPiece) for piece in pieces), text[:end]
        num_begun.append(sum(isinstance(piece, ToolCallStarted) for piece in pieces))
    assert num_begun[0] == 0
    assert num_begun[-1] >= 1
    assert num_begun == sorted(num_begun)


@EACH
def test_calls_that_may_come_are_cut_off_as_well_once_they_have_begun(name: str) -> None:
    """Before, it may be text; of bare JSON that begins an answer nobody knows."""
    syntax, text = WRITTEN[name]
    assert syntax.form is not None
    for end in range(len(syntax.form.trigger), len(text)) if syntax.form.trigger else ():
        pieces = cut_off(syntax, text[:end], must_come=False)
        assert not any(isinstance(piece, TextPiece) for piece in pieces), text[:end]
    assert cut_off(syntax, "So <too", must_come=False)[0].text.startswith("So")


@EACH
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("add", "sub"), ("5", '"5"'), ("5", "5.5"), ("5", "null"), ('q"', "\x00")],
)
def test_nothing_else(name: str, right: str, wrong: str) -> None:
    syntax, text = WRITTEN[name]
    if wrong == "\x00":  # cut off
        assert not accepts(syntax, (ADD, GET), text[:-2])
    else:
        assert not accepts(syntax, (ADD, GET), text.replace(right, wrong, 1))


def tool(properties: dict[str, Any], **words: Any) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": list(properties), **words}
    return ToolSpec("f", None, schema)


def xml(*pairs: tuple[str, str]) -> str:
    body = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in pairs)
    return f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"


class TestTextArguments:
    @pytest.mark.parametrize(
        ("schema", "text", "value"),
        [
            ({"type": "string"}, "", ""),
            ({"type": "string"}, "\n\nx\n", "\n\nx\n"),
            ({"type": "string"}, "null", "null"),
            ({"type": "string"}, "</function> </p", "</function> </p"),
            ({"type": ["string", "null"]}, "null", "null"),
            ({}, "5", "5"),
            ({"type": "number"}, "1.5e3", 1500.0),
            ({"type": ["null", "boolean"]}, "null", None),
            ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
            ({"type": "array", "items": {"type": "string"}}, '["a", "b"]', ["a", "b"]),
            ({"properties": {"k": {"const": 1}}, "required": ["k"]}, '{"k": 1}', {"k": 1}),
            ({"enum": ["a", "b</function>"]}, "b</function>", "b</function>"),
            ({"const": 3}, "3", 3),
            ({"$ref": "#/$defs/a~1b"}, "[1]", [1]),
        ],
    )
    def test_are_read_back(self, schema: Any, text: str, value: Any) -> None:
        numbers = {"type": "array", "items": {"type": "integer"}}
        spec = tool({"v": schema}, **{"$defs": {"a/b": numbers}})
        assert accepts(QWEN_XML, (spec,), xml(("v", text)))
        assert parse(QWEN_XML, (spec,), xml(("v", text))) == [("f", {"v": value})]

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            ({"type": "string"}, "a</parameter>b"),
            ({"type": "string"}, "a<parameter=x>"),
            ({"type": "string"}, "</tool_call>"),
            ({"type": "string"}, "a\r"),
            ({"type": "string", "maxLength": 2}, "abc"),
            ({"type": "string", "pattern": "^a"}, "b"),
            ({"enum": ["a", "b"]}, "c"),
            ({"type": ["integer", "string"]}, "x"),
            ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None"),
        ],
    )
    def test_what_would_be_read_otherwise(self, schema: Any, text: str) -> None:
        assert not accepts(QWEN_XML, (tool({"v": schema}),), xml(("v", text)))

    def test_optional_ones(self) -> None:
        spec = tool({"a": {"type": "string"}, "b": {"type": "string"}}, required=["b"])
        assert accepts(QWEN_XML, (spec,), xml(("a", "1"), ("b", "2")))
        assert accepts(QWEN_XML, (spec,), xml(("b", "2")))
        assert not accepts(QWEN_XML, (spec,), xml(("a", "1")))
        assert not accepts(QWEN_XML, (spec,), xml(("b", "2"), ("b", "2")))

    def test_required_ones_that_are_not_declared(self) -> None:
        spec = tool({}, required=["z"])
        assert accepts(QWEN_XML, (spec,), xml(("z", "any")))
        assert not accepts(QWEN_XML, (spec,), xml())

    @pytest.mark.parametrize(
        "spec",
        [
            tool({"d": {"type": "string", "format": "date"}}),
            tool({"d": {"type": "string", "pattern": "^2|-02$"}}),
            tool({"d e": {"const": "2026-11-29"}}),
            ToolSpec("f", None, {"type": "object", "anyOf": [{"required": ["d"]}]}),
        ],
    )
    def test_one_object_where_they_cannot_be_written(self, spec: ToolSpec) -> None:
        key = next(iter(spec.parameters.get("properties", {"d": 0})))
        arguments = json.dumps({key: "2026-11-29"})
        text = f"<tool_call>\n<function=f>\n{arguments}</function>\n</tool_call>"
        assert accepts(QWEN_XML, (spec,), text)
        assert parse(QWEN_XML, (spec,), text) == [("f", {key: "2026-11-29"})]
        assert not accepts(QWEN_XML, (spec,), xml((key, "2026-11-29")))

    def test_any_object_where_nothing_is_declared(self) -> None:
        spec = ToolSpec("f", None, {"type": "object"})
        text = '<tool_call>\n<function=f>\n{"x": 1}</function>\n</tool_call>'
        assert accepts(QWEN_XML, (spec,), text)
        assert parse(QWEN_XML, (spec,), text) == [("f", {"x": 1})]
        assert parse(QWEN_XML, (spec,), xml()) == [("f", {})]
        assert accepts(QWEN_XML, (spec,), xml())

    @pytest.mark.parametrize("text", ["\nx", "x\n", "\r\nx"])
    def test_line_ends_that_count_as_markup(self, text: str) -> None:
        """GLM has none around its values, so the first and last would be lost."""
        call = f"<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
        assert not accepts(GLM, (tool({"v": {"type": "string"}}),), call)

    def test_dsml_says_what_is_json(self) -> None:
        spec = tool({"v": {"type": ["string", "null"]}, "d": {"type": "string", "format": "date"}})
        text = (
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
            '<｜DSML｜parameter name="v" string="true">null</｜DSML｜parameter>\n'
            '<｜DSML｜parameter name="d" string="false">"2026-11-29"</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
        )
        assert accepts(DSML, (spec,), text)
        assert parse(DSML, (spec,), text) == [("f", {"v": "null", "d": "2026-11-29"})]


class TestGemmaArguments:
    @pytest.mark.parametrize(
        ("schema", "text", "value"),
        [
            ({"type": "string"}, '<|"|><|"|>', ""),
            ({"type": "string", "maxLength": 3}, '<|"|>"\n}<|"|>', '"\n}'),
            ({"enum": ["a", 1, None]}, '<|"|>a<|"|>', "a"),
            ({"enum": ["a", 1, None]}, "null", None),
            ({"type": ["integer", "null"]}, "5", 5),
            ({"anyOf": [{"type": "string"}, {"type": "boolean"}]}, "true", True),
            ({"type": "array", "items": {"type": "integer"}}, "[]", []),
            ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "[1,2,3]", [1, 2, 3]),
            ({"type": "array", "items": {"type": "null"}, "maxItems": 1}, "[null]", [None]),
            ({"$ref": "#/$defs/t"}, "{v:1,k:[{v:2}]}", {"v": 1, "k": [{"v": 2}]}),
        ],
    )
    def test_are_read_back(self, schema: Any, text: str, value: Any) -> None:
        tree = {
            "type": "object",
            "properties": {
                "v": {"type": "number"},
                "k": {"type": "array", "items": {"$ref": "#/$defs/t"}},
            },
            "required": ["v"],
        }
        spec = tool({"p": schema}, **{"$defs": {"t": tree}})
        call = f"<|tool_call>call:f{{p:{text}}}<tool_call|>"
        for has_control in (False, True):
            assert accepts(GEMMA, (spec,), call, has_control=has_control)
        assert parse(GEMMA, (spec,), call) == [("f", {"p": value})]

    @pytest.mark.parametrize("keys", ["", "a", "b", "ab", "ac", "bc", "abc", "c"])
    def test_optional_ones_and_their_commas(self, keys: str) -> None:
        spec = tool({"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}}, required=["b"])
        call = f"<|tool_call>call:f{{{','.join(f'{key}:1' for key in keys)}}}<tool_call|>"
        assert accepts(GEMMA, (spec,), call) == ("b" in keys)
        spec = tool({"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}}, required=[])
        assert accepts(GEMMA, (spec,), call)

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "string", "format": "date"},
            {"type": "array"},
            {"type": "array", "items": {}, "maxItems": 0},
            {"type": "object"},
            {"type": ["object", "string"], "properties": {}},
            {"enum": [[1]]},
            {"enum": ["a"], "type": "null"},
            {"allOf": [{"type": "string"}]},
            True,
        ],
    )
    def test_json_where_they_cannot_be_written(self, schema: Any) -> None:
        spec = tool({"p": schema, "q": {"const": 1}}, required=["q"])
        call = '<|tool_call>call:f{"q": 1}<tool_call|>'
        assert accepts(GEMMA, (spec,), call)
        assert not accepts(GEMMA, (spec,), call.replace('"q"', "q"))
        assert parse(GEMMA, (spec,), call) == [("f", {"q": 1})]
