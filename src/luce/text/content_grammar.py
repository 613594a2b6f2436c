"""Content of a form, JSON, a regular expression or a client's own grammar, as a Lark rule."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from luce.text.call import AnswerFormat, JsonFormat, RegexFormat
from luce.text.grammar_compiler import GrammarCompiler
from luce.text.json_grammar import json_rule, read_schema
from luce.text.lark import LarkWriter, pattern
from luce.text.regex_check import regex_fault
from luce.text.schema_error import SchemaError

MAX_LARK_CHARS = 32_768
MAX_LARK_RULES = 1_000
"""Rules that go through each other are followed on the compiler's native stack, which holds some
thousand of them."""
MAX_LARK_OPERATORS = 8
"""`&` and `~`: the work of joining doubles with each."""
MAX_PROBES = 200
"""Parts of a schema that are compiled alone to find which is at fault."""

_RULE = re.compile(r"^[ \t]*[?!]?\w[\w.\-]*[^:\n]*:", re.MULTILINE)
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|(?://|#)[^\n]*')
_START = re.compile(r"^[ \t]*[?!]?start\b", re.MULTILINE)
_NESTED = re.compile(r"%\s*(?:json|lark|regex|llguidance)")
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def content_rule(lark: LarkWriter, form: AnswerFormat, compiler: GrammarCompiler) -> str:
    """A rule for content of a form.

    Raises:
        SchemaError: content cannot be held to it.
    """
    if isinstance(form, JsonFormat):
        schema = {"type": "object"} if form.schema is None else read_schema(form.schema)
        return lark.rule(json_rule(compilable(schema, compiler)))
    if isinstance(form, RegexFormat):
        fault = regex_fault(form.pattern)
        if fault is not None:
            raise SchemaError((), fault)
        return lark.rule(pattern(form.pattern))
    _check_lark(form.source, compiler)
    return lark.rule(f"%lark {{\n{form.source}\n}}")


def compilable(schema: dict[str, Any], compiler: GrammarCompiler) -> dict[str, Any]:
    """The schema itself.

    Raises:
        SchemaError: it cannot be compiled; names the smallest part that cannot.
    """
    fault = compiler.fault(_alone(schema))
    if fault is None:
        return schema
    path: tuple[str, ...] = ()
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    part: Mapping[str, Any] = schema
    probes = MAX_PROBES
    while probes > 0:
        for step, child in _children(part):
            probes -= 1
            child_fault = compiler.fault(_alone({**definitions, **child}))
            if child_fault is not None:
                path, part, fault = (*path, *step), child, child_fault
                break
            if probes <= 0:
                break
        else:
            break
    raise SchemaError(path, fault)


def json_path(path: tuple[str, ...]) -> str:
    """A path in a schema, as people write it: `$.properties["a b"].items`."""
    steps = (f".{step}" if _NAME.fullmatch(step) else f"[{step!r}]" for step in path)
    return "$" + "".join(step.replace("'", '"') if step[0] == "[" else step for step in steps)


def _alone(schema: Mapping[str, Any]) -> str:
    return f"start: {json_rule(dict(schema))}\n"


def _children(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    for word, value in schema.items():
        inner: Iterator[tuple[tuple[str, ...], Any]] = iter(())
        if word in ("properties", "patternProperties"):
            inner = (((word, name), one) for name, one in value.items())
        elif word in ("allOf", "anyOf", "oneOf", "prefixItems"):
            inner = (((word, str(index)), one) for index, one in enumerate(value))
        elif word in ("items", "additionalProperties"):
            inner = iter([((word,), value)])
        yield from ((step, one) for step, one in inner if isinstance(one, Mapping))


def _check_lark(source: str, compiler: GrammarCompiler) -> None:
    bare = _QUOTED.sub("", source)
    num_operators = bare.count("&") + bare.count("~")
    if len(source) > MAX_LARK_CHARS:
        fault: str | None = f"more than {MAX_LARK_CHARS} characters"
    elif len(_RULE.findall(bare)) > MAX_LARK_RULES:
        fault = f"more than {MAX_LARK_RULES} rules"
    elif num_operators > MAX_LARK_OPERATORS:
        fault = f"more than {MAX_LARK_OPERATORS} of the operators & and ~"
    elif _NESTED.search(source):
        fault = (
            "%json, %lark, %regex and %llguidance are not supported; response_format has schemas"
        )
    elif not _START.search(source):
        fault = "there is no rule named start"
    else:
        fault = compiler.fault(source)
    if fault is not None:
        raise SchemaError((), fault)
