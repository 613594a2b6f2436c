"""Which syntax belongs to which model."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.text.tools.registry import FALLBACKS, active_syntaxes, find_syntax

TEMPLATES = Path(__file__).parent.parent / "templates"


@pytest.mark.parametrize(
    ("template", "architecture", "expected"),
    [
        ((TEMPLATES / "qwen3.jinja").read_text(), "qwen3", "hermes"),
        ((TEMPLATES / "llama3.jinja").read_text(), "llama", "llama3"),
        ("'<tool_call>\\n<function=' + name", "qwen35", "qwen_xml"),
        ("<tool_call>' + name + '<arg_key>", "glm4", "glm"),
        ("[TOOL_CALLS]", "llama", "mistral"),
        ("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'", "deepseek2", "deepseek"),
        ("<｜DSML｜function_calls>", "deepseek2", "dsml"),
        ("[TOOL_CALLS]' + name + '[ARGS]'", "llama", "mistral"),
        ("<|tool_call>call:", "gemma4", "gemma"),
        ("<function_calls><invoke name=", "x", "invoke"),
        ("{{ tools }}", "qwen35", "qwen_xml"),
        ("{{ tools }}", "deepseek4", "dsml"),
        ("{{ tools }}", "llama", "hermes"),
    ],
)
def test_found_by_the_template_or_the_architecture(
    template: str, architecture: str, expected: str
) -> None:
    assert find_syntax(template, architecture).name == expected


def test_the_own_one_is_tried_with_the_others() -> None:
    mistral = find_syntax("[TOOL_CALLS]", "llama")
    assert active_syntaxes(mistral) == (mistral, *FALLBACKS)
    assert sorted(s.name for s in active_syntaxes(FALLBACKS[0])) == sorted(
        s.name for s in FALLBACKS
    )


@pytest.mark.parametrize("mark", ["[TOOL_CALLS]", "<｜tool▁call▁begin｜>", "<|python_tag|>", ""])
def test_no_mark_lies_inside_another(mark: str) -> None:
    """What `MarkerScanner` relies on."""
    syntaxes = active_syntaxes(find_syntax(mark, ""))
    texts = [
        text
        for syntax in syntaxes
        for text in (*(w.opener for w in syntax.wrappers), *syntax.elements, *syntax.closers)
    ]
    for text in texts:
        inner = [other for other in texts if other in text[1:]]
        # In "_call:" it does no harm: nothing but the longer one begins with "_".
        assert inner == (["call:"] if text == "_call:" else [])


@pytest.mark.parametrize(
    ("template", "begins"),
    [
        ("[TOOL_CALLS]", "[TOOL_CALLS] ["),
        ("[TOOL_CALLS]' + name + '[ARGS]'", ""),
        (
            "<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n```json\\n'",
            "<｜tool▁calls▁begin｜>",
        ),
        ("<｜DSML｜function_calls>", "<｜DSML｜function_calls>\n"),
        ("<｜DSML｜tool_calls>", "<｜DSML｜tool_calls>\n"),
    ],
)
def test_variants_differ_in_how_calls_are_forced(template: str, begins: str) -> None:
    form = find_syntax(template, "").form
    assert form is not None
    assert form.opening == begins
    assert form.trigger in (form.opening or form.before_name)


def test_deepseek_s_two_ways() -> None:
    old = find_syntax("<｜tool▁call▁begin｜> ```json", "").form
    new = find_syntax("<｜tool▁call▁begin｜>", "").form
    assert old is not None
    assert new is not None
    assert "```" in old.after_name
    assert new.after_name == "<｜tool▁sep｜>"


def test_every_model_s_own_syntax_can_be_forced() -> None:
    marks = ["｜DSML｜", "[TOOL_CALLS]", "<|tool_call>", "<arg_key>", "<function=", "<invoke", "x"]
    assert all(find_syntax(mark, "llama").form is not None for mark in marks)
