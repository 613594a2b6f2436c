"""What the template environment lets a template do beyond rendering text."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import jinja2
import pytest

from luce.text.sandbox import compile_template, fresh_budget, make_environment


def render(source: str, **variables: Any) -> str:
    template = compile_template(make_environment(datetime.now), source)
    with fresh_budget():
        return template.render(variables)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1] }}",
        "{{ (1).__class__.__base__ }}",
        "{{ namespace(_x=1) }}",
        "{{ namespace({'__init__': 1}) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ dict.__class__.__name__ }}",
        "{{ strftime_now.__globals__.x }}",
        "{{ '{0.__class__.__name__.x}'.format(1) }}",
        "{{ items.append(1) }}",
        "{{ mapping.update(a=1) }}",
        "{{ mapping.pop('a') }}",
        "{{ raise_exception.__code__.co_code }}",
        "{{ cycler.__init__.__globals__.os }}",
    ],
)
def test_the_sandbox_refuses(source: str) -> None:
    with pytest.raises(jinja2.TemplateError):
        render(source, items=[], mapping={"a": 1})


def test_namespaces_and_dicts_work_as_templates_expect() -> None:
    source = (
        "{% set ns = namespace({'a': 1}, b=2, self=3) %}{% set ns.a = ns.a + ns.b %}"
        "{{ ns.a }}{{ ns.self }}{{ dict([('k', 'v')], w=1) }}{{ dict.fromkeys('ab') }}"
    )
    assert render(source) == "33{'k': 'v', 'w': 1}{'a': None, 'b': None}"


def test_any_keyword_may_be_passed_to_a_call() -> None:
    source = "{% macro f() %}{{ kwargs }}{% endmacro %}{{ f(context=1, obj=2) }}"
    assert render(source) == "{'context': 1, 'obj': 2}"


def test_json_is_for_prompts_not_for_html() -> None:
    assert render("{{ x | tojson }}", x={"a": "<é>&'"}) == '{"a": "<é>&\'"}'
    assert render("{{ x | tojson(indent=1) }}", x=[1]) == "[\n 1\n]"


def test_loops_see_what_they_loop_over() -> None:
    assert render("{% for c in 'abc' %}{{ loop.revindex }}{{ c }}{% endfor %}") == "3a2b1c"
    assert render("{% for x in nothing %}{% else %}empty{% endfor %}") == "empty"
    with pytest.raises(TypeError, match="not iterable"):
        render("{% for x in none %}{% endfor %}")


def test_constant_loops_are_counted_too() -> None:
    source = "{% for a in [1, 2] %}" * 18 + "x" + "{% endfor %}" * 18
    template = compile_template(make_environment(datetime.now), source)
    with fresh_budget():
        assert len(template.render()) == 2**18
    source = "{% for a in [1, 2] %}" * 19 + "{% for b in 'abcdefgh' %}{% endfor %}"
    with pytest.raises(jinja2.TemplateError, match="steps"):
        render(source + "{% endfor %}" * 19)
