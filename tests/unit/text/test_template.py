"""Chat templates: byte for byte as transformers renders them, and every failure typed."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from luce.errors import ModelFileError, TemplateError
from luce.text.template import CHATML_TEMPLATE, ChatTemplate

FOLDER = Path(__file__).parent / "templates"
TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.jinja")}
TEMPLATES["chatml_fallback"] = CHATML_TEMPLATE

PLAIN: list[dict[str, Any]] = [{"role": "user", "content": "Hi <b>\n\n é 日本 "}]
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "one\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\ntwo"},
    {"role": "user", "content": "  three"},
]
SYSTEM: list[dict[str, Any]] = [{"role": "system", "content": "Be brief. "}, *TURNS]
CALL = {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2.5, None, True]}}
TOOL_TURNS: list[dict[str, Any]] = [
    *TURNS,
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "look",
        "tool_calls": [{"type": "function", "id": "c1", "function": CALL}],
    },
    {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    {"role": "tool", "content": "'<warm>'"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Wetter für "Städte" & <mehr>',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]

NONE: dict[str, Any] = {}
CASES = [
    *((name, PLAIN, NONE) for name in TEMPLATES),
    *((name, TURNS, NONE) for name in TEMPLATES),
    *((name, SYSTEM, NONE) for name in TEMPLATES if name != "mistral"),
    *((name, TOOL_TURNS, NONE) for name in ("llama3", "qwen3", "helpers")),
    *((name, TOOL_TURNS, {"tools": TOOLS}) for name in ("llama3", "qwen3")),
    *((name, SYSTEM, {"tools": TOOLS}) for name in ("llama3", "qwen3")),
    ("qwen3", SYSTEM, {"enable_thinking": False}),
    ("qwen3", SYSTEM, {"enable_thinking": True, "add_generation_prompt": False}),
    ("llama3", SYSTEM, {"date_string": "1 Jan 2020", "custom_tools": TOOLS}),
]


@pytest.mark.parametrize(("name", "messages", "variables"), CASES)
def test_renders_as_transformers(
    name: str, messages: list[dict[str, Any]], variables: dict[str, Any]
) -> None:
    ours = ChatTemplate(TEMPLATES[name], "<s>", "</s>").render(messages, variables)
    arguments = {"add_generation_prompt": True, **variables}
    theirs: Any = render_jinja_template(
        [messages],
        chat_template=TEMPLATES[name],
        bos_token="<s>",
        eos_token="</s>",
        **arguments,
    )
    assert [ours] == theirs[0]


def render(source: str, messages: list[dict[str, Any]] | None = None, **variables: Any) -> str:
    return ChatTemplate(source).render(messages or PLAIN, variables)


def test_the_demo_template_by_hand() -> None:
    text = render(CHATML_TEMPLATE, [{"role": "user", "content": "Hi"}])
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_absent_tokens_are_undefined() -> None:
    assert render("{{ bos_token }}{{ eos_token is defined }}") == "False"


def test_dates() -> None:
    def now() -> datetime:
        return datetime(2026, 3, 4, 5, 6, 7)

    template = ChatTemplate("{{ strftime_now('%d %B %Y %H:%M:%S %j %a %p %%') }}", now=now)
    assert template.render(PLAIN, {}) == "04 March 2026 05:06:07 063 Wed AM %"
    assert ChatTemplate("{{ strftime_now(format='%Y') }}", now=now).render(PLAIN, {}) == "2026"


def test_variables_do_not_replace_the_messages() -> None:
    assert render("{{ messages | length }}", messages=[]) == "1"


class TestSyntax:
    def test_the_line_is_named(self) -> None:
        with pytest.raises(ModelFileError, match=r"^chat\.jinja: syntax error on line 3: "):
            ChatTemplate("a\nb\n{% if %}\n", origin="chat.jinja")

    def test_unknown_tags_and_filters(self) -> None:
        with pytest.raises(ModelFileError, match="line 1: Encountered unknown tag 'frob'"):
            ChatTemplate("{% frob %}")
        with pytest.raises(ModelFileError, match="line 2: No filter named 'frob'"):
            ChatTemplate("\n{{ 1 | frob }}")

    @pytest.mark.parametrize(
        "source", ["{{ " + "(" * 5000 + ")" * 5000 + " }}", "{% for a in b %}" * 30 + "x"]
    )
    def test_absurd_nesting(self, source: str) -> None:
        with pytest.raises(ModelFileError):
            ChatTemplate(source + "{% endfor %}" * source.count("{% for"))


class TestFailures:
    def test_the_templates_own_message(self) -> None:
        with pytest.raises(TemplateError, match=r"^no tools here$") as failure:
            render("{{ raise_exception('no tools here') }}")
        assert failure.value.status == 400
        assert failure.value.type == "invalid_request_error"

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("{{ 1 / 0 }}", "failed: ZeroDivisionError"),
            ("{{ 'a' + 1 }}", "failed: TypeError"),
            ("{{ missing.attribute }}", "'missing' is undefined"),
            ("{{ ''.__class__.__mro__ }}", "unsafe"),
            ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
            ("{{ raise_exception(1) }}", "^1$"),
            ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
            ("{{ undefined_thing | tojson }}", "TypeError"),
        ],
    )
    def test_are_template_errors(self, source: str, says: str) -> None:
        with pytest.raises(TemplateError, match=says) as refused:
            render(source)
        assert refused.value.param == "messages"

    def test_a_template_is_usable_after_a_failure(self) -> None:
        template = ChatTemplate("{{ 1 / number }}")
        with pytest.raises(TemplateError):
            template.render(PLAIN, {"number": 0})
        assert template.render(PLAIN, {"number": 2}) == "0.5"


class TestForms:
    """Conversations a template refuses in the client's own form."""

    def test_two_user_turns_in_a_row(self) -> None:
        messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
        assert render(TEMPLATES["mistral"], messages) == "[INST] a\n\nb [/INST]"

    def test_a_system_turn_where_there_is_none(self) -> None:
        assert render(TEMPLATES["mistral"], [{"role": "system", "content": "S"}, *PLAIN[:1]]) == (
            "[INST] S\n\nHi <b>\n\n é 日本  [/INST]"
        )

    def test_two_system_turns(self) -> None:
        messages = [{"role": "system", "content": text} for text in "ST"]
        rendered = render(TEMPLATES["mistral"], [*messages, {"role": "user", "content": "U"}])
        assert rendered == "[INST] S\n\nT\n\nU [/INST]"

    def test_only_a_system_turn(self) -> None:
        rendered = render(TEMPLATES["mistral"], [{"role": "system", "content": "S"}])
        assert rendered == "[INST] S [/INST]"

    def test_null_content(self) -> None:
        call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
        messages = [*PLAIN, call]
        assert render(CHATML_TEMPLATE, messages).count("<|im_start|>assistant\n<|im_end|>") == 1

    def test_when_every_form_is_refused_the_first_refusal_is_told(self) -> None:
        source = "{{ raise_exception('have ' ~ messages | length) }}"
        with pytest.raises(TemplateError, match=r"^have 2$"):
            render(source, [*PLAIN, *PLAIN])

    def test_what_a_template_accepts_is_left_as_it_is(self) -> None:
        messages = [*PLAIN, *PLAIN, {"role": "system", "content": "late"}]
        assert render("{{ messages | length }}", messages) == "3"


class TestBounds:
    @pytest.mark.timeout(60)
    @pytest.mark.parametrize(
        "source",
        [
            "{% for x in range(10**9) %}{% endfor %}",
            "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}",
            "{% for x in range(9999) %}{% for y in range(9999) | map('string') %}"
            "{% endfor %}{% endfor %}",
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
            "{{ f(60) }}",
            "{{ range(10**7) | list | length }}",
            "{{ 'a' * 10**9 }}",
            "{{ 10**9 * [1] }}",
            "{{ 9 ** 99999 }}",
            "{{ 2 ** 4000 * 2 ** 4000 }}",
            "{% for x in range(40) %}{{ messages[0].content * 100000 }}{% endfor %}",
        ],
    )
    def test_endless_work_is_refused(self, source: str) -> None:
        with pytest.raises(TemplateError, match=r"steps|longer|too large"):
            render(source, [{"role": "user", "content": "0123456789"}])

    def test_ordinary_arithmetic_is_not(self) -> None:
        assert render("{{ 3 * 4 }}{{ 'ab' * 2 }}{{ 2 * [1] }}{{ 2 ** 10 }}{{ 2.5 * 2 }}") == (
            "12abab[1, 1]10245.0"
        )

    def test_each_rendering_has_its_own_budget(self) -> None:
        template = ChatTemplate("{% for x in range(99999) %}{% endfor %}" * 9 + "done")
        assert [template.render(PLAIN, {}) for _ in range(4)] == ["done"] * 4
