"""The Jinja environment chat templates run in: sandboxed, bounded, with the helpers they call.

Rendering is done on a budget of `MAX_STEPS` (loop rounds, calls, repeated items) and
`MAX_RENDERED_CHARS` of output, so that a template which would run for hours fails instead. This
bounds time; memory only as far as these go. The language and the helpers are those of
transformers' `apply_chat_template`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 2_000_000
"""Steps of one rendering, about a second: a thousand messages, each compared with each other."""
MAX_RENDERED_CHARS = 32 * 2**20
"""Longest rendering."""
_STEPS_PER_CALL = 10
_MAX_INTEGER_BITS = 4096

_COUNTED_FILTER = "luce_counted"


class BudgetExhausted(jinja2.TemplateError):
    """The template does more than any chat template needs."""


class _Budget:
    def __init__(self) -> None:
        self._steps_left = MAX_STEPS

    def charge(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise BudgetExhausted(f"The chat template takes more than {MAX_STEPS} steps")


_budget: ContextVar[_Budget] = ContextVar("template_budget")


@contextmanager
def fresh_budget() -> Iterator[None]:
    """Give the renderings inside one full budget; needed around each rendering."""
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose loops, calls, ranges and repetitions are counted."""

    intercepted_binops = frozenset({"*", "**"})

    # Jinja's signature: the underscores leave every keyword name to the template.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call something for a template."""
        _budget.get().charge(_STEPS_PER_CALL)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Multiply or raise to a power, within bounds."""
        for items, count in ((left, right), (right, left)):
            if operator == "*" and isinstance(items, str | list | tuple) and isinstance(count, int):
                _budget.get().charge(len(items) * max(count, 0))
        if isinstance(left, int) and isinstance(right, int):
            factor = abs(right) if operator == "**" else 1
            if left.bit_length() * factor + right.bit_length() > _MAX_INTEGER_BITS:
                raise BudgetExhausted("The chat template computes with too large numbers")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}`: marks the assistant's text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class _TemplateNamespace(Namespace):
    """`namespace()` without underscore names, which lead into Python's insides."""

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _DictFactory:
    """The template's `dict`: makes dictionaries and offers nothing else of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def make_environment(now: Callable[[], datetime]) -> ChatEnvironment:
    """The environment of one template.

    Args:
        now: local time, for `strftime_now`.
    """
    environment = ChatEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
    )

    def strftime_now(format: str) -> str:  # noqa: A002 - templates may pass it by this name
        return now().strftime(format)

    environment.filters["tojson"] = _to_json
    environment.filters[_COUNTED_FILTER] = _counted
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=strftime_now,
        namespace=_make_namespace,
        dict=_DictFactory(),
        range=_bounded_range,
    )
    return environment


def compile_template(environment: ChatEnvironment, source: str) -> jinja2.Template:
    """Compile a template so that all its loops are counted.

    Raises:
        jinja2.TemplateSyntaxError: with the line number.
    """
    tree = environment.parse(source)
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, _COUNTED_FILTER, [], [], None, None).set_lineno(
            loop.lineno
        )
    tree.set_environment(environment)
    code = environment.compile(tree)
    return environment.template_class.from_code(environment, code, environment.make_globals(None))


@jinja2.pass_context  # so that Jinja does not evaluate it while compiling
def _counted(_context: Context, items: Any) -> Any:
    """Charge a loop's rounds; what has a length is charged at once and stays what it is."""
    budget = _budget.get()
    try:
        length = len(items)
    except TypeError:
        return _count_rounds(items, budget)
    budget.charge(length)
    return items


def _count_rounds(items: Iterable[Any], budget: _Budget) -> Iterator[Any]:
    for item in items:
        budget.charge(1)
        yield item


def _bounded_range(*bounds: int) -> range:
    result = range(*bounds)
    _budget.get().charge(len(result))
    return result


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _make_namespace(*args: Any, **kwargs: Any) -> _TemplateNamespace:
    values = dict(*args, **kwargs)
    for name in values:
        _check_name(name)
    return _TemplateNamespace(values)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"The chat template stores {name!r}: names must not begin with _")
