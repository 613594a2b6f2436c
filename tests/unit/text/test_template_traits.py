"""What a template knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.text.template import CHATML_TEMPLATE
from luce.text.template_traits import TemplateTraits

TEMPLATES = Path(__file__).parent / "templates"


def source(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("template", "tools", "calls", "reasoning"),
    [
        (CHATML_TEMPLATE, False, False, False),
        (source("chatml.jinja"), False, False, False),
        (source("mistral.jinja"), False, False, False),
        (source("llama3.jinja"), True, True, False),
        (source("qwen3.jinja"), True, True, True),
        ("{# tools, tool_calls #}You have no tools.{{ 'tools' }}", False, False, False),
        ("{% if message['tool_calls'] %}{% endif %}", False, True, False),
        ("{% if 'tool_calls' in message %}{% endif %}", False, True, False),
        ("{{ message.reasoning_content }}{{ my_tools }}", False, False, True),
    ],
)
def test_what_it_looks_at(template: str, tools: bool, calls: bool, reasoning: bool) -> None:
    traits = TemplateTraits.of(template)
    assert (traits.has_tools, traits.has_calls, traits.has_reasoning) == (tools, calls, reasoning)


def test_ids_of_nine_characters() -> None:
    assert TemplateTraits.of("{% if call.id|length != 9 %}{% endif %}").has_short_ids
    assert not TemplateTraits.of("{% if call.id|length != 90 %}{% endif %}").has_short_ids


def test_its_strings() -> None:
    assert "</think>" in TemplateTraits.of("{{ content.split('</think>')[-1] }}").strings
    assert "</think>" not in TemplateTraits.of("</think>{# '</think>' #}").strings
