"""Which syntax a model was taught, and which others are tried besides."""

from __future__ import annotations

from collections.abc import Mapping

from luce.text.tools.deepseek import DEEPSEEK, DEEPSEEK_V31
from luce.text.tools.gemma import GEMMA
from luce.text.tools.hermes import GLM, HERMES
from luce.text.tools.invoke import DSML, DSML_V32, INVOKE
from luce.text.tools.llama3 import LLAMA3
from luce.text.tools.mistral import MISTRAL, MISTRAL_ARGS
from luce.text.tools.qwen_xml import QWEN_XML
from luce.text.tools.syntax import ToolSyntax
from luce.text.tools.wrapped import WRAPPED

FALLBACKS = (HERMES, QWEN_XML, GLM, WRAPPED, INVOKE, DSML, GEMMA)
"""Taken from any model: plain text that models write whatever they were taught. A bare JSON call
is taken from any model, too."""

_MARKS: tuple[tuple[str, ToolSyntax], ...] = (
    ("｜DSML｜function_calls", DSML_V32),
    ("｜DSML｜", DSML),
    ("<｜tool▁call▁begin｜>", DEEPSEEK_V31),
    ("[ARGS]", MISTRAL_ARGS),
    ("[TOOL_CALLS]", MISTRAL),
    ("<|tool_call>", GEMMA),
    ("<arg_key>", GLM),
    ("<function=", QWEN_XML),
    ("<tool_call>", HERMES),
    ("<invoke", INVOKE),
    ("<|python_tag|>", LLAMA3),
    ('"parameters": ', LLAMA3),
)
"""What only one syntax's template holds, the more telling first."""

_BY_ARCHITECTURE: Mapping[str, ToolSyntax] = {
    "deepseek4": DSML,
    "deepseek2": DEEPSEEK,
    "gemma4": GEMMA,
    "qwen35": QWEN_XML,
    "qwen36": QWEN_XML,
}


def find_syntax(template: str, architecture: str) -> ToolSyntax:
    """The syntax of a model's own calls: by its chat template, or else by its architecture.

    Hermes where neither tells, which is also how tools are explained to a model whose template
    knows none.

    Args:
        template: the Jinja source.
    """
    for mark, syntax in _MARKS:
        if mark in template:
            return DEEPSEEK if syntax is DEEPSEEK_V31 and "```json" in template else syntax
    return _BY_ARCHITECTURE.get(architecture, HERMES)


def active_syntaxes(own: ToolSyntax) -> tuple[ToolSyntax, ...]:
    """A model's own syntax and the fallbacks, each once."""
    return (own, *(syntax for syntax in FALLBACKS if syntax.name != own.name))
