"""Content of a form, JSON, a regular expression or a client's own grammar, as a Lark rule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from luce.text.call import AnswerFormat, JsonFormat, LarkFormat, RegexFormat
from luce.text.grammar_check import GrammarCheck
from luce.text.json_grammar import json_rule, read_schema
from luce.text.lark import LarkWriter, pattern
from luce.text.lark_in_json import in_json
from luce.text.regex_check import regex_fault
from luce.text.schema_error import SchemaError
from luce.text.schema_width import steps, wide_parts

MAX_LARK_CHARS = 32_768
MAX_LARK_RULES = 1_000
"""Rules that go through each other are followed on the compiler's native stack, which holds some
thousand of them."""
MAX_LARK_OPERATORS = 8
"""`&` and `~`: the work of joining doubles with each."""
MAX_PROBES = 200
"""Parts of a schema that are compiled alone to find which is at fault."""
MAX_PROBED_CHARS = 200_000
"""Of those parts together."""

_RULE = re.compile(r"^[ \t]*[?!]?\w[\w.\-]*[^:\n]*:", re.MULTILINE)
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|(?://|#)[^\n]*')
_START = re.compile(r"^[ \t]*[?!]?start\b", re.MULTILINE)
_NESTED = re.compile(r"%\s*(?:json|lark|regex|llguidance)")
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def content_rule(lark: LarkWriter, form: AnswerFormat, check: GrammarCheck) -> str:
    """A rule for content of a form; it was not compiled yet.

    Raises:
        SchemaError: content cannot be held to it.
    """
    if isinstance(form, JsonFormat):
        schema = _schema_of(form)
        check_wide_parts(schema, check, with_root=False)
        return lark.rule(json_rule(schema))
    if isinstance(form, RegexFormat):
        fault = regex_fault(form.pattern)
        if fault is not None:
            raise SchemaError((), fault)
        return lark.rule(pattern(form.pattern))
    check_lark(form.source, check)
    return lark.rule(f"%lark {{\n{form.source}\n}}")


def input_rule(lark: LarkWriter, form: LarkFormat, check: GrammarCheck) -> str:
    """A rule for the insides of a JSON string that follows a client's grammar, which compiles.

    Raises:
        SchemaError: no such string can be held to it.
    """
    source = in_json(form.source)
    fault = check.fault(f'start: "\\"" r "\\""\nr: %lark {{\n{source}\n}}\n')
    if fault is not None:
        raise SchemaError((), f"{fault}, as part of a call")
    return lark.rule(f"%lark {{\n{source}\n}}")


def noun(form: AnswerFormat) -> str:
    """What a client calls the form."""
    if isinstance(form, JsonFormat):
        return "schema of the answer"
    is_regex = isinstance(form, RegexFormat)
    return f"{'regular expression' if is_regex else 'grammar'} of the answer"


def content_fault(form: AnswerFormat, fault: str, check: GrammarCheck) -> SchemaError:
    """What is wrong with a form whose rule does not compile, as near to its place as it goes."""
    if isinstance(form, JsonFormat):
        return faulty_part(_schema_of(form), fault, check)
    return SchemaError((), fault)


def schema_source(schema: Mapping[str, Any]) -> str:
    """A grammar of values of a schema alone."""
    return f"start: {json_rule(dict(schema))}\n"


def check_wide_parts(schema: Mapping[str, Any], check: GrammarCheck, *, with_root: bool) -> None:
    """Try each place that leaves much open; usual schemas have none.

    Args:
        schema: as `read_schema` gives it.
        check: tries them.
        with_root: the schema itself, too.

    Raises:
        SchemaError: one cannot be followed.
    """
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    for path, part in wide_parts(schema):
        if part is schema and not with_root:
            continue
        fault = check.fault(schema_source({**definitions, **part}))
        if fault is not None:
            raise SchemaError(path, fault)


def faulty_part(schema: Mapping[str, Any], fault: str, check: GrammarCheck) -> SchemaError:
    """The smallest part of a schema that does not compile, looked for within bounds.

    Args:
        schema: as `read_schema` gives it.
        fault: of the whole.
        check: tries the parts.
    """
    path: tuple[str, ...] = ()
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    part = schema
    probes, chars = MAX_PROBES, MAX_PROBED_CHARS
    is_deeper = True
    while is_deeper:
        is_deeper = False
        for step, child in steps(part):
            source = schema_source({**definitions, **child})
            probes, chars = probes - 1, chars - len(source)
            if probes < 0 or chars < 0:
                break
            child_fault = check.try_once(source)
            if child_fault is not None:
                path, part, fault = (*path, *step), child, child_fault
                is_deeper = True
                break
    return SchemaError(path, fault)


def _schema_of(form: JsonFormat) -> dict[str, Any]:
    return {"type": "object"} if form.schema is None else read_schema(form.schema)


def json_path(path: tuple[str, ...]) -> str:
    """A path in a schema, as people write it: `$.properties["a b"].items`."""
    steps = (f".{step}" if _NAME.fullmatch(step) else f"[{step!r}]" for step in path)
    return "$" + "".join(step.replace("'", '"') if step[0] == "[" else step for step in steps)


def check_lark(source: str, check: GrammarCheck) -> None:
    """Try a client's grammar.

    Raises:
        SchemaError: it has errors, or is too large.
    """
    bare = _QUOTED.sub("", source)
    num_operators = bare.count("&") + bare.count("~")
    if len(source) > MAX_LARK_CHARS:
        fault: str | None = f"more than {MAX_LARK_CHARS} characters"
    elif len(_RULE.findall(bare)) > MAX_LARK_RULES:
        fault = f"more than {MAX_LARK_RULES} rules"
    elif num_operators > MAX_LARK_OPERATORS:
        fault = f"more than {MAX_LARK_OPERATORS} of the operators & and ~"
    elif _NESTED.search(source):
        fault = "%json, %lark, %regex and %llguidance are not supported"
    elif not _START.search(source):
        fault = "there is no rule named start"
    else:
        fault = check.fault(source)
    if fault is not None:
        raise SchemaError((), fault)
