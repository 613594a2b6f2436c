"""OutputGrammar: which outputs a request leaves, in the model's own way of writing."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, ClassVar

import llguidance
import pytest

from luce.errors import InvalidGrammar
from luce.grammar import GrammarVocabulary
from luce.testing import tiny_tokenizer
from luce.testing.grammars import grammar_tokenizer
from luce.text import content_grammar
from luce.text.call import (
    ChatMessage,
    GenerationCall,
    JsonFormat,
    LarkFormat,
    NamedTool,
    RegexFormat,
    ToolSpec,
)
from luce.text.channels import GEMMA, THINK
from luce.text.gguf_vocab import TokenType, build_tokenizer
from luce.text.grammar_check import GrammarCheck
from luce.text.output_grammar import (
    OutputGrammar,
    ReasoningPlace,
    grammar_order,
    reasoning_place,
)
from luce.text.reasoning import ReasoningRequest
from luce.text.tokenizer import Tokenizer
from luce.text.tools.gemma import GEMMA as GEMMA_CALLS
from luce.text.tools.hermes import HERMES
from luce.text.tools.llama3 import LLAMA3
from luce.text.tools.qwen_xml import QWEN_XML
from luce.text.tools.syntax import ToolSyntax
from luce.text.tools.wrapped import WRAPPED
from luce.text.vocabulary import token_vocabulary

USER = (ChatMessage("user", "Hi"),)
ADD = ToolSpec(
    "add",
    None,
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
)
GET = ToolSpec("get")
STRICT = ToolSpec("add", None, ADD.parameters, is_strict=True)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 5}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "add", "arguments": {"a": "5"}}\n</tool_call>'
CONTROL = (
    "<think>",
    "</think>",
    "<|channel>",
    "<channel|>",
    '<|"|>',
    "<|tool_call>",
    "<tool_call|>",
)


def make_tokenizer(control: tuple[str, ...] = (), **vocab: Any) -> Tokenizer:
    kinds = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * len(control)
    return build_tokenizer(
        {
            "model": "gpt2",
            "pre": "smollm",
            "tokens": [
                *tiny_tokenizer.TOKENS[:3],
                *tiny_tokenizer.byte_characters(),
                *control,
            ],
            "token_type": kinds,
            "merges": [],
            "eos_token_id": 2,
            **vocab,
        }
    )


class Model:
    """A model's grammars, and what they make of texts."""

    def __init__(self, tokenizer: Tokenizer, syntax: ToolSyntax = HERMES) -> None:
        self.tokenizer = tokenizer
        vocabulary = token_vocabulary(tokenizer, (2,), tokenizer.vocab_size)
        self._compiled = grammar_tokenizer(vocabulary)
        self.check = GrammarCheck(lambda: vocabulary)
        self.grammars = OutputGrammar(tokenizer, syntax, self.check)

    def accepts(self, lark: str, text: str) -> bool:
        """Whether a text, control tokens written by name, is a whole output."""
        matcher = llguidance.LLMatcher(self._compiled, lark, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = self.tokenizer.encode_with_specials(text)
        return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())

    def lark(
        self,
        tools: tuple[ToolSpec, ...] = (),
        reasoning: ReasoningPlace | None = None,
        **fields: Any,
    ) -> str:
        call = GenerationCall(None, USER, tools=tools, **fields)
        order = grammar_order(call, tools, reasoning)
        assert order is not None
        return self.grammars.of(order).lark


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(make_tokenizer())


@pytest.fixture(scope="module")
def tagged() -> Model:
    """The tags are control tokens."""
    return Model(make_tokenizer(CONTROL))


class TestNothingForced:
    @pytest.mark.parametrize(
        ("tools", "fields"),
        [
            ((), {}),
            ((ADD, GET), {}),
            ((ADD,), {"parallel_tool_calls": False}),
            ((), {"tool_choice": "required"}),
        ],
    )
    def test_no_grammar(self, model: Model, tools: Any, fields: Any) -> None:
        call = GenerationCall(None, USER, tools=tools, **fields)
        assert grammar_order(call, tools) is None


class TestContent:
    def test_any_object(self, model: Model) -> None:
        lark = model.lark(answer_format=JsonFormat())
        assert model.accepts(lark, '{"a": [1, {"b": null}]}')
        for text in ("[]", "5", "", "Sure: {}", '{"a": 1'):
            assert not model.accepts(lark, text)

    def test_a_schema(self, model: Model) -> None:
        lark = model.lark(answer_format=JsonFormat(ADD.parameters))
        assert model.accepts(lark, '{"a": 5}')
        assert not model.accepts(lark, '{"a": "5"}')

    def test_a_regular_expression(self, model: Model) -> None:
        lark = model.lark(answer_format=RegexFormat("(yes|no)/[!?]+"))
        assert model.accepts(lark, "no/!?")
        assert not model.accepts(lark, "no/")

    def test_a_grammar(self, model: Model) -> None:
        source = 'start: WORD ("," WORD)*\nWORD: /[a-z]+/\n%ignore " "\n'
        lark = model.lark(answer_format=LarkFormat(source))
        assert model.accepts(lark, "ab, c")
        assert not model.accepts(lark, "ab,")

    def test_the_space_some_vocabularies_begin_with(self, spm: Tokenizer) -> None:
        spaced = Model(spm)
        lark = spaced.lark(answer_format=JsonFormat())
        matcher = llguidance.LLMatcher(spaced._compiled, lark, log_level=0)
        space = next(i for i in range(spm.vocab_size) if spm.token_bytes(i) == b" {"[:1])
        assert matcher.validate_tokens([space]) == 1


class TestReasoning:
    OPEN = ReasoningPlace(THINK, is_open=True)
    MAYBE = ReasoningPlace(THINK, is_open=False)

    @pytest.mark.parametrize("has_tokens", [False, True])
    def test_it_goes_on_until_its_tag(self, model: Model, tagged: Model, has_tokens: bool) -> None:
        chosen = tagged if has_tokens else model
        lark = chosen.lark(reasoning=self.OPEN, answer_format=JsonFormat())
        assert chosen.accepts(lark, "Hm, {5}\n\n</think>\n\n{}")
        assert chosen.accepts(lark, "</think>{}")
        assert not chosen.accepts(lark, "{}")
        assert not chosen.accepts(lark, "</think>\n\n\n\n\n{}")
        assert not chosen.accepts(lark, "Hm</think>no")

    @pytest.mark.parametrize("has_tokens", [False, True])
    def test_the_model_may_begin_it(self, model: Model, tagged: Model, has_tokens: bool) -> None:
        chosen = tagged if has_tokens else model
        lark = chosen.lark(reasoning=self.MAYBE, answer_format=JsonFormat())
        assert chosen.accepts(lark, "<think>\nHm\n</think>\n\n{}")
        assert chosen.accepts(lark, "{}")
        assert not chosen.accepts(lark, "<think>{}")

    def test_a_control_token_is_not_spelled_out(self, tagged: Model) -> None:
        lark = tagged.lark(reasoning=self.OPEN, answer_format=JsonFormat())
        matcher = llguidance.LLMatcher(tagged._compiled, lark, log_level=0)
        ids = tagged.tokenizer.encode("Hm</think>")
        assert matcher.try_consume_tokens(ids) == len(ids) - 1

    def test_channels_with_a_name(self, tagged: Model) -> None:
        lark = tagged.lark(
            reasoning=ReasoningPlace(GEMMA, is_open=False), answer_format=JsonFormat()
        )
        assert tagged.accepts(lark, "<|channel>thought\nHm<channel|>{}")

    def test_before_calls(self, model: Model) -> None:
        lark = model.lark((ADD,), self.OPEN, tool_choice="required")
        assert model.accepts(lark, f"I call <tool_call>\n</think>\n\n{CALL}")

    @pytest.mark.parametrize(
        ("prompt", "enabled", "expected"),
        [
            ("..<think>\n", None, True),
            ("..<think>", False, True),
            ("..", None, False),
            ("..", True, False),
            ("..", False, None),
            ("..<think>\n\n</think>\n\n", None, None),
        ],
    )
    def test_where_it_may_stand(
        self, prompt: str, enabled: bool | None, expected: bool | None
    ) -> None:
        place = reasoning_place(THINK, ReasoningRequest(enabled=enabled), prompt)
        assert (place.is_open if place else None) == expected


class TestRequiredCalls:
    def test_one_or_more(self, model: Model) -> None:
        lark = model.lark((ADD, GET), tool_choice="required")
        assert model.accepts(lark, CALL)
        assert model.accepts(lark, f"{OTHER}\n{CALL}")
        for text in ("", "Sure.", WRONG, f"{CALL}\nDone.", CALL.replace("add", "sub"), CALL[:-5]):
            assert not model.accepts(lark, text)

    def test_the_named_tool(self, model: Model) -> None:
        call = GenerationCall(None, USER, tools=(ADD, GET), tool_choice=NamedTool("get"))
        order = grammar_order(call, (GET,))
        assert order is not None
        lark = model.grammars.of(order).lark
        assert model.accepts(lark, OTHER)
        assert not model.accepts(lark, CALL)
        assert not model.accepts(lark, f"{OTHER}\n{OTHER}")  # One call, as OpenAI's API gives.

    def test_exactly_one(self, model: Model) -> None:
        lark = model.lark((ADD, GET), tool_choice="required", parallel_tool_calls=False)
        assert model.accepts(lark, CALL)
        assert not model.accepts(lark, f"{CALL}\n{OTHER}")

    def test_a_content_form_does_not_count(self, model: Model) -> None:
        lark = model.lark((ADD,), tool_choice="required", answer_format=JsonFormat())
        assert model.accepts(lark, CALL)
        assert not model.accepts(lark, "{}")


class TestTextAndCalls:
    def test_text_may_come_instead_or_before(self, model: Model) -> None:
        lark = model.lark((STRICT,))
        for text in ("", "No.", "{}", f"I add.\n{CALL}", f"{CALL}\n{CALL}", "a < b <tool"):
            assert model.accepts(lark, text), text
        for text in (WRONG, f"I add. {WRONG}", "<tool_call>", f"{CALL} Done."):
            assert not model.accepts(lark, text), text

    def test_tools_that_are_not_strict_are_held_to_theirs_as_well(self, model: Model) -> None:
        lark = model.lark((ToolSpec("get", None, {}, is_strict=True), ADD))
        assert model.accepts(lark, CALL)
        assert not model.accepts(lark, WRONG)

    def test_bare_calls_begin_an_answer(self) -> None:
        llama = Model(make_tokenizer(), LLAMA3)
        lark = llama.lark((STRICT,))
        call = '{"name": "add", "parameters": {"a": 5}}'
        for text in ("", "No {}.", call, f"{call}; {call}"):
            assert llama.accepts(lark, text), text
        for text in (call.replace("5", '"5"'), "{}", "[1]", f"{call} Done."):
            assert not llama.accepts(lark, text), text

    @pytest.mark.parametrize("syntax", [HERMES, LLAMA3, GEMMA_CALLS, QWEN_XML])
    def test_content_of_a_form_instead(self, syntax: ToolSyntax) -> None:
        chosen = Model(make_tokenizer(CONTROL), syntax)
        lark = chosen.lark((ADD, GET), answer_format=JsonFormat({"type": "object", "properties": {
            "name": {"const": "x"}}, "required": ["name"]}))  # fmt: skip
        calls = {
            "hermes": CALL,
            "llama3": '{"name": "add", "parameters": {"a": 5}}',
            "gemma": "<|tool_call>call:add{a:5}<tool_call|>",
            "qwen_xml": "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n</function>\n"
            "</tool_call>",
        }
        assert chosen.accepts(lark, '{"name": "x"}')
        assert chosen.accepts(lark, calls[syntax.name])
        assert not chosen.accepts(lark, "{}")
        assert not chosen.accepts(lark, "No.")


class TestCompiling:
    @pytest.fixture
    def tried(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        found: list[str] = []
        real = GrammarVocabulary.compile

        def counting(vocabulary: GrammarVocabulary, lark: str) -> Any:
            found.append(lark)
            return real(vocabulary, lark)

        monkeypatch.setattr(GrammarVocabulary, "compile", counting)
        return found

    def test_what_can_be_followed_is_compiled_once(self, model: Model, tried: list[str]) -> None:
        lark = model.lark((ADD, GET), tool_choice="required", parallel_tool_calls=True)
        form = JsonFormat({"type": "object", "properties": {"once": {"type": "integer"}}})
        content = model.lark(answer_format=form)
        assert tried == [content] or tried == [lark, content]

    def test_parts_are_looked_at_behind_a_fault_only_and_not_kept(
        self, model: Model, tried: list[str]
    ) -> None:
        bad = {"type": "integer", "minimum": 5, "maximum": 3}
        form = JsonFormat({"type": "array", "items": bad, "minItems": 1})
        kept = len(model.check._verdicts)
        with pytest.raises(InvalidGrammar) as failure:
            model.lark(answer_format=form)
        assert failure.value.param == "answer_format.items"
        assert len(tried) == 2
        assert len(model.check._verdicts) == kept + 1

    def test_looking_for_a_fault_has_an_end(
        self, model: Model, tried: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(content_grammar, "MAX_PROBES", 5)
        bad = {"type": "integer", "minimum": 5, "maximum": 3}
        members = [{"const": i} for i in range(50)]
        form = JsonFormat({"type": "array", "prefixItems": [*members, bad], "minItems": 51})
        with pytest.raises(InvalidGrammar) as failure:
            model.lark(answer_format=form)
        assert failure.value.param == "answer_format"
        assert len(tried) == 6


class TestRefused:
    @pytest.mark.parametrize(
        ("form", "param", "says"),
        [
            (JsonFormat({"type": "nonsense"}), "answer_format.type", "nonsense"),
            (
                JsonFormat({"properties": {"a b": {"items": {"pattern": "(?!x)"}}}}),
                "answer_format.properties.a b.items.pattern",
                r'look-around.*\$\.properties\["a b"\]\.items\.pattern',
            ),
            (
                JsonFormat(
                    {
                        "type": "object",
                        "$defs": {"n": {"type": "integer", "minimum": 5}},
                        "properties": {
                            "ok": {"$ref": "#/$defs/n"},
                            "b": {"allOf": [{"$ref": "#/$defs/n"}, {"maximum": 3}]},
                        },
                        "required": ["b"],
                    }
                ),
                "answer_format.properties.b",
                "minimum",
            ),
            (RegexFormat("(?=x)"), "answer_format", "look-around"),
            (LarkFormat("word: /a/"), "answer_format", "start"),
            (LarkFormat("start: missing"), "answer_format", "missing"),
            (LarkFormat('start: %json {"type": "null"}'), "answer_format", "%json"),
            (LarkFormat("start: A\nA: " + " & ".join(["/a/"] * 10)), "answer_format", "operators"),
            (LarkFormat('start: "a"\n' + "# \n" * 20_000), "answer_format", "characters"),
            (
                LarkFormat("start: a0\n" + "\n".join(f'a{i}: "x"' for i in range(1200))),
                "answer_format",
                "rules",
            ),
        ],
    )
    def test_answers(self, model: Model, form: Any, param: str, says: str) -> None:
        with pytest.raises(InvalidGrammar, match=says) as failure:
            model.lark(answer_format=form)
        assert failure.value.param == param

    @pytest.mark.parametrize(
        ("form", "says"),
        [
            (JsonFormat({"const": 1, "type": "string"}), "The schema of the answer"),
            (RegexFormat("(?=x)"), "The regular expression of the answer"),
            (RegexFormat(r"[^\s\S]"), "The regular expression of the answer"),
            (LarkFormat("start: missing"), "The grammar of the answer"),
        ],
    )
    def test_it_is_called_what_the_client_sent(self, model: Model, form: Any, says: str) -> None:
        with pytest.raises(InvalidGrammar, match=f"^{says}"):
            model.lark(answer_format=form)

    LARGE: ClassVar = {"enum": [{"a": i} for i in range(6_000)]}

    @pytest.mark.parametrize(
        ("schema", "param"),
        [
            ({"properties": {"p": LARGE}}, "answer_format.properties.p"),
            ({"type": "array", "items": {"items": LARGE}}, "answer_format.items.items"),
            ({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": LARGE}}, "answer_format.items"),
        ],
    )
    def test_a_place_that_leaves_too_much_open(self, model: Model, schema: Any, param: str) -> None:
        with pytest.raises(InvalidGrammar, match="too much open") as failure:
            model.lark(answer_format=JsonFormat(schema))
        assert failure.value.param == param

    def test_a_tool_that_leaves_too_much_open(self, model: Model) -> None:
        large = self.LARGE
        strict = ToolSpec("f", None, {"properties": {"p": large}}, is_strict=True)
        with pytest.raises(InvalidGrammar, match="too much open") as failure:
            model.lark((GET, strict), tool_choice="required")
        assert failure.value.param.startswith("tools[1].parameters")
        lark = model.lark((GET, replace(strict, is_strict=False)), tool_choice="required")
        assert model.accepts(lark, OTHER)

    def test_strict_tools(self, model: Model) -> None:
        bad = ToolSpec("f", None, {"properties": {"p": {"pattern": r"\bx"}}}, is_strict=True)
        with pytest.raises(InvalidGrammar, match="tool 'f'") as failure:
            model.lark((GET, bad))
        assert failure.value.param == "tools[1].parameters.properties.p.pattern"

    @pytest.mark.parametrize("schema", [{"type": "string"}, {"$ref": "#"}])
    def test_arguments_are_an_object(self, model: Model, schema: Any) -> None:
        with pytest.raises(InvalidGrammar):
            model.lark((ToolSpec("f", None, schema, is_strict=True),))

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "string"},
            {"properties": {"a": {"type": "string", "pattern": "(?!x)"}}},
            {
                "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}},
                "required": ["a"],
            },
        ],
    )
    def test_others_are_followed_as_far_as_they_can_be(
        self, model: Model, schema: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO):
            lark = model.lark((ToolSpec("get", None, schema),), tool_choice="required")
        assert model.accepts(lark, OTHER)
        assert caplog.records

    @pytest.mark.parametrize(
        ("syntax", "name"), [(QWEN_XML, "a>b"), (QWEN_XML, "x" * 300), (HERMES, " a"), (LLAMA3, "")]
    )
    def test_names_the_syntax_cannot_hold(self, syntax: ToolSyntax, name: str) -> None:
        chosen = Model(make_tokenizer(), syntax)
        with pytest.raises(InvalidGrammar, match="cannot hold the name") as failure:
            chosen.lark((ADD, ToolSpec(name, None, {})), tool_choice="required")
        assert failure.value.param == "tools[1].name"

    def test_a_model_s_own_syntax_can_be_forced(self) -> None:
        with pytest.raises(ValueError, match="wrapped"):
            OutputGrammar(make_tokenizer(), WRAPPED, GrammarCheck(lambda: None))  # type: ignore[arg-type,return-value]
