"""A client's Lark grammar, turned into one of the same texts as JSON writes them in a string.

A call's arguments are JSON in most syntaxes, and in the others text is cut off at the first tag,
which a grammar cannot be kept from holding. Between quotes a text can hold anything.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from luce.text.json_insides import (
    Repeated,
    can_go_on_escaped,
    pattern_insides,
    repeated,
    slashed,
    text_insides,
)
from luce.text.lark import escaped
from luce.text.schema_error import SchemaError

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOKEN = re.compile(
    rf"(?P<range>(?P<first>{_STRING})\s*\.\.\s*(?P<last>{_STRING}))"
    rf"|(?P<string>{_STRING})(?P<folds>i?)"
    r"|/(?P<regex>(?!/)(?:[^/\\\n]|\\.)+)/(?P<flags>[a-z]*)"
    r"|(?P<comment>(?://|\#)[^\n]*)"
    r"|(?P<control><[^<>\n]*>)"
    r"|(?P<negation>~(?![ \t]*[0-9]))"
    r"|(?P<name>[A-Za-z_]\w*)"
)
_HEAD = re.compile(
    r"^[ \t]*(?:[?!]?(?P<name>[A-Za-z_]\w*)(?:\[[^\]\n]*\])?[ \t]*:"
    r"|%import[ \t]+common(?P<imports>[^\n]*)|(?P<ignore>%ignore\b)|%)",
    re.MULTILINE,
)
_IMPORT = re.compile(r"(\w+)(?:[ \t]*->[ \t]*(\w+))?")
_COMMON = {
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
    "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
}
"""Lark's own terminals that can hold what JSON escapes; all others are only imported."""
_SETS = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\[pPxuU](?:\{[^}]*\}|\w{1,8})", re.DOTALL)
_REGEXES = re.compile(r"/(?:[^/\\\n]|\\.)+/")
MAX_SETS = 100
MAX_REGEXES = 200
MAX_TERMINALS = 200
"""For each of them one or two small grammars are tried, 2 to 10 ms each on a busy core."""
MAX_EXPANDED = 50_000
"""Characters of a terminal with those that it is made of."""
_LOST = "ends in something that JSON escapes, so that what follows it cannot be told apart"


def in_json(source: str) -> str:
    """The grammar of a text's insides, between the quotes.

    Args:
        source: a grammar that compiles.

    Raises:
        SchemaError: it has parts that cannot be written so.
    """
    source = f"{source}\n"
    if len(set(_SETS.findall(source))) > MAX_SETS:
        raise SchemaError((), f"more than {MAX_SETS} different sets of characters")
    if len(set(_REGEXES.findall(source))) > MAX_REGEXES:
        raise SchemaError((), f"more than {MAX_REGEXES} different regular expressions")
    heads = list(_HEAD.finditer(source))
    ends = [head.start() for head in heads[1:]] + [len(source)]
    lead = source[: heads[0].start()] if heads else source
    statements = [
        _Statement(head, source[head.end() : end]) for head, end in zip(heads, ends, strict=True)
    ]
    terminals = _Terminals()
    lines = [lead]
    for statement in statements:
        lines += terminals.take(statement)
    terminals.finish()
    lines += [terminals.use(statement) for statement in statements if not statement.is_terminal]
    return "".join(lines)


@dataclass(frozen=True, slots=True)
class _Statement:
    """A definition or directive: its head, and what stands behind it up to the next."""

    head: re.Match[str]
    body: str

    @property
    def name(self) -> str:
        """Of what is defined; empty for a directive."""
        return self.head["name"] or ""

    @property
    def is_terminal(self) -> bool:
        """Whether a terminal is defined, or several are imported."""
        return self.name.isupper() or self.head["imports"] is not None


@dataclass(slots=True)
class _Terminals:
    """Terminals, rewritten; what rules and directives may make of them.

    Attributes:
        bodies: by name.
        repeated: of those whose whole body is one thing again and again.
    """

    bodies: dict[str, str] = field(default_factory=dict)
    repeated: dict[str, Repeated] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    _whole: dict[str, str] = field(default_factory=dict)

    def take(self, statement: _Statement) -> list[str]:
        """Rewrite a terminal's definition, or imports; nothing for other statements."""
        if statement.head["imports"] is not None:
            return [self._import(*names) for names in _IMPORT.findall(statement.head["imports"])]
        if not statement.is_terminal:
            return []
        tokens = list(_TOKEN.finditer(statement.body))
        regexes = [token for token in tokens if not token["comment"]]
        if len(regexes) == 1 and regexes[0][0] == statement.body.strip():
            self._note_repeated(statement.name, regexes[0]["regex"], regexes[0]["flags"] or "")
        body = _TOKEN.sub(_rewritten, statement.body)
        self.bodies[statement.name] = body
        return [f"{statement.head[0]}{body}"]

    def finish(self) -> None:
        """All are there: see which of them cannot be told from an escape behind them.

        Raises:
            SchemaError: there are too many.
        """
        if len(self.bodies) > MAX_TERMINALS:
            raise SchemaError((), f"more than {MAX_TERMINALS} terminals")
        for name in self.bodies:
            if can_go_on_escaped(self._expanded(name)):
                self._lost.add(name)

    def use(self, statement: _Statement) -> str:
        """A rule or a directive, rewritten."""
        if statement.head["ignore"]:
            return self._ignore(statement)
        return statement.head[0] + _TOKEN.sub(self._in_rule, statement.body)

    def _import(self, name: str, alias: str) -> str:
        if name not in _COMMON:
            return f"%import common.{name}" + (f" -> {alias}\n" if alias else "\n")
        ours = alias or name
        self._note_repeated(ours, _COMMON[name], "")
        self.bodies[ours] = slashed(pattern_insides(_COMMON[name]))
        return f"{ours}: {self.bodies[ours]}\n"

    def _note_repeated(self, name: str, regex: str | None, flags: str) -> None:
        found = repeated(_bare(regex), is_dotall="s" in flags) if regex else None
        if found is not None and "i" not in flags:
            self.repeated[name] = found

    def _expanded(self, name: str) -> str:
        """A terminal's body with the bodies of others in place of their names."""
        if name not in self._whole:

            def put(token: re.Match[str]) -> str:
                other = token["name"]
                return f"({self._expanded(other)})" if other in self.bodies else token[0]

            whole = _TOKEN.sub(put, self.bodies[name]).replace("\n", " ")
            if len(whole) > MAX_EXPANDED:
                raise SchemaError((), f"terminal {name} is too large")
            self._whole[name] = whole
        return self._whole[name]

    def _in_rule(self, token: re.Match[str]) -> str:
        if token["name"] in self._lost:
            return self._spread(token["name"], self.repeated.get(token["name"]))
        written = _rewritten(token)
        if token["regex"] and can_go_on_escaped(written):
            flags = token["flags"] or ""
            found = repeated(_bare(token["regex"]), is_dotall="s" in flags)
            return self._spread(token[0], found if "i" not in flags else None)
        return written

    def _spread(self, what: str, found: Repeated | None) -> str:
        """In place of one lexeme several: each of them ends where it must."""
        if found is None:
            raise SchemaError((), f"{what[:80]} {_LOST}")
        return f"(({' | '.join(map(slashed, found.lexemes))}){found.quantifier})"

    def _ignore(self, statement: _Statement) -> str:
        """What is ignored may come again and again by itself."""
        token = _TOKEN.search(statement.body)
        found = None
        if token and token["name"]:
            found = self.repeated.get(token["name"])
        elif token and token["regex"]:
            found = repeated(_bare(token["regex"]), is_dotall="s" in (token["flags"] or ""))
        if found is None:
            return statement.head[0] + _TOKEN.sub(self._in_rule, statement.body)
        return "".join(f"%ignore {slashed(lexeme)}\n" for lexeme in found.lexemes)


def _rewritten(token: re.Match[str]) -> str:
    """A literal or an expression, as one lexeme; all else as it is."""
    if token["negation"] or token["control"]:
        what = "the operator ~" if token["negation"] else "a control token"
        raise SchemaError((), f"{what} cannot stand in the grammar of a tool's input")
    if token["range"]:
        first, last = (_in_class(_text_of(token[each])) for each in ("first", "last"))
        return slashed(pattern_insides(f"[{first}-{last}]"))
    if token["string"]:
        return _literal(token["string"], token["folds"])
    if token["regex"]:
        flags = token["flags"] or ""
        if set(flags) - set("isu"):
            raise SchemaError((), f"the flags {flags!r} of an expression are not supported here")
        return slashed(pattern_insides(_bare(token["regex"]), is_dotall="s" in flags)) + flags
    return token[0]


def _literal(literal: str, folds: str) -> str:
    text = _text_of(literal)
    written = text_insides(text)
    if not folds or written == text:
        return json.dumps(written) + folds
    return slashed(pattern_insides(escaped(text))) + "i"


def _bare(regex: str) -> str:
    """An expression as it is outside of Lark, where a slash is a slash."""
    return re.sub(r"\\(.)", lambda pair: "/" if pair[1] == "/" else pair[0], regex, flags=re.DOTALL)


def _text_of(literal: str) -> str:
    """What a literal stands for."""
    body = re.sub(r"\\x([0-9A-Fa-f]{2})|\\.", lambda m: f"\\u00{m[1]}" if m[1] else m[0], literal)
    try:
        return str(json.loads(body))
    except ValueError as error:
        raise SchemaError((), f"{literal[:40]} has an escape that is not JSON's") from error


def _in_class(character: str) -> str:
    return "".join(f"\\x{{{ord(each):x}}}" for each in character)
