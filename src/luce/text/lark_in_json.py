"""A client's Lark grammar, turned into one of the same texts as JSON writes them in a string.

A call's arguments are JSON in most syntaxes, and in the others text is cut off at the first tag,
which a grammar cannot be kept from holding. Between quotes a text can hold anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from luce.text.json_insides import (
    Apart,
    begin_alike,
    can_go_on_behind,
    can_go_on_escaped,
    have_common,
    may_hold_escape,
    pattern_insides,
    repeated,
    slashed,
    text_apart,
    text_insides,
)
from luce.text.lark import escaped
from luce.text.lark_rows import Place, Rows, UnreadRules
from luce.text.schema_error import SchemaError
from luce.units import cut

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
    "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
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
_IGNORED = "the_ignored"
_UNREADABLE = "%"
"""Instead of a rule's body that does not say all of it."""
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
    for is_apart in (False, True):
        rules = _Rules(terminals, is_apart=is_apart)
        written = list(rules.write([each for each in statements if not each.is_terminal]))
        if not rules.are_ambiguous():
            return "".join([*lines, *written])
    raise SchemaError((), f"a terminal or text that begins another one {_LOST}")


_Writer = Callable[[re.Match[str]], str]


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
        apart: of those that can be made of several lexemes.
        lost: those that cannot be told from an escape behind them.
        names: of all of them.
        imports: directives for those that are Lark's and stay as they are.
    """

    bodies: dict[str, str] = field(default_factory=dict)
    apart: dict[str, Apart] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    imports: list[str] = field(default_factory=list)
    _whole: dict[str, str] = field(default_factory=dict)

    def take(self, statement: _Statement) -> list[str]:
        """Rewrite a terminal's definition, or imports; nothing for other statements."""
        if statement.head["imports"] is not None:
            return [self._import(*names) for names in _IMPORT.findall(statement.head["imports"])]
        if not statement.is_terminal:
            return []
        tokens = [each for each in _TOKEN.finditer(statement.body) if not each["comment"]]
        if len(tokens) == 1 and tokens[0][0] == statement.body.strip():
            self._note_apart(statement.name, _apart(tokens[0]))
        body = _TOKEN.sub(_rewritten, statement.body)
        self.bodies[statement.name] = body
        self.names.add(statement.name)
        return [f"{statement.head[0]}{body}"]

    def finish(self) -> None:
        """All are there: see which of them cannot be told from an escape behind them.

        Raises:
            SchemaError: there are too many.
        """
        if len(self.bodies) > MAX_TERMINALS:
            raise SchemaError((), f"more than {MAX_TERMINALS} terminals")
        for name in self.bodies:
            if can_go_on_escaped(self.expanded(name)):
                self.lost.add(name)

    def _import(self, name: str, alias: str) -> str:
        self.names.add(alias or name)
        if name not in _COMMON:
            self.imports.append(f"%import common.{name}" + (f" -> {alias}\n" if alias else "\n"))
            return self.imports[-1]
        ours = alias or name
        self._note_apart(ours, repeated(_COMMON[name]))
        self.bodies[ours] = slashed(pattern_insides(_COMMON[name]))
        return f"{ours}: {self.bodies[ours]}\n"

    def _note_apart(self, name: str, found: Apart | None) -> None:
        if found is not None:
            self.apart[name] = found

    def expanded(self, name: str) -> str:
        """A terminal's body with the bodies of others in place of their names."""
        if name not in self._whole:

            def put(token: re.Match[str]) -> str:
                if token["comment"]:
                    return ""
                other = token["name"]
                return f"({self.expanded(other)})" if other in self.bodies else token[0]

            whole = _TOKEN.sub(put, self.bodies[name]).replace("\n", " ")
            if len(whole) > MAX_EXPANDED:
                raise SchemaError((), f"terminal {name} is too large")
            self._whole[name] = whole
        return self._whole[name]


class _Rules:
    """Rules, rewritten, with the lexemes that they are made of.

    What is ignored becomes a rule behind each lexeme: one of several pieces must not let it in
    between them, which the parser's own way of ignoring would. It may thus come at the end too.

    Args:
        terminals: all of the grammar's.
        is_apart: make several lexemes of whatever can be made of several.
    """

    def __init__(self, terminals: _Terminals, *, is_apart: bool) -> None:
        self._terminals = terminals
        self._is_apart = is_apart
        self._skips = False
        self._lexemes: dict[str, None] = {}
        self._singles: dict[str, None] = {}
        self._written: dict[str, str] = {}

    def write(self, statements: Sequence[_Statement]) -> Iterator[str]:
        """Rules and directives, rewritten."""
        ignored = [statement for statement in statements if statement.head["ignore"]]
        self._skips = bool(ignored)
        for statement in statements:
            if not statement.head["ignore"]:
                self._note(statement)
                yield statement.head[0] + _TOKEN.sub(self._in_rule, statement.body)
        if ignored:
            self._written[_IGNORED] = self._any_of(ignored, self._marked)
            yield f"{_IGNORED}: {self._any_of(ignored, self._lexeme)}\n"

    def are_ambiguous(self) -> bool:
        """Whether a lexeme may go on where another one has ended, as it could not outside JSON.

        Raises:
            SchemaError: they are too large to tell.
        """
        together = list(self._lexemes)
        if len(" | ".join(together)) > MAX_EXPANDED:
            raise SchemaError((), "the terminals are too large together")
        if not self._take_from(together, together, list(self._singles)):
            return False
        # Not all of them are looked for at the same place.
        try:
            rows = Rows(self._written, self._terminals.names, self._have_common)
            groups = rows.groups()
        except UnreadRules:
            return True
        size = sum(len(self._body(place.lexeme)) for _, beside, _ in groups for place in beside)
        return size > MAX_EXPANDED or any(self._is_lost(rows, *group) for group in groups)

    def _is_lost(
        self, rows: Rows, places: list[Place], beside: list[Place], early: list[Place]
    ) -> bool:
        """Whether places and those that are open beside them may take each other's text."""
        ended = [
            place
            for place in places
            if any(may_hold_escape(self._body(each.lexeme)) for each in rows.of(place.following))
        ]
        singles = [place for place in places if self._body(place.lexeme) in self._singles]
        taken, takers, near = map(self._bodies, (places, early, beside))
        imports = "".join(self._terminals.imports)
        return self._take_from(near, self._bodies(ended), self._bodies(singles)) or bool(
            early and begin_alike(" | ".join(taken), " | ".join(takers), imports)
        )

    def _bodies(self, places: Sequence[Place]) -> list[str]:
        return list(dict.fromkeys(self._body(place.lexeme) for place in places))

    def _any_of(self, ignored: Sequence[_Statement], lexeme: _Writer) -> str:
        bodies = (_TOKEN.sub(lexeme, statement.body).strip() for statement in ignored)
        return f"({' | '.join(bodies)})*"

    def _note(self, statement: _Statement) -> None:
        """Keep a rule's body; one with options or a second definition is not to be read."""
        if statement.name:
            is_plain = "[" not in statement.head[0] and statement.name not in self._written
            body = _TOKEN.sub(self._in_marked_rule, statement.body) if is_plain else _UNREADABLE
            self._written[statement.name] = body

    def _take_from(self, open_at_once: list[str], ended: list[str], singles: list[str]) -> bool:
        """Whether one of several lexemes may take what comes behind the end of another one."""
        imports = "".join(self._terminals.imports)
        together, ends, pieces = map(" | ".join, (open_at_once, ended, singles))
        return bool(ends and can_go_on_escaped(together, imports, behind=ends)) or bool(
            pieces and can_go_on_behind(pieces, together, imports)
        )

    def _body(self, lexeme: str) -> str:
        is_ours = lexeme in self._terminals.bodies
        return f"({self._terminals.expanded(lexeme)})" if is_ours else lexeme

    def _have_common(self, one: str, other: str) -> bool:
        imports = "".join(self._terminals.imports)
        return have_common(self._body(one), self._body(other), imports)

    def _in_rule(self, token: re.Match[str]) -> str:
        return self._placed(token, self._lexeme)

    def _in_marked_rule(self, token: re.Match[str]) -> str:
        return self._placed(token, self._marked)

    def _placed(self, token: re.Match[str], lexeme: _Writer) -> str:
        name = token["name"]
        if token["comment"] or (name and name not in self._terminals.names):
            return token[0]
        return f"({lexeme(token)} {_IGNORED})" if self._skips else lexeme(token)

    def _marked(self, token: re.Match[str]) -> str:
        """A lexeme; one of several pieces is between the marks that `Rows` reads."""
        written = self._lexeme(token)
        return f"<{written}>" if written.startswith("(") else written

    def _lexeme(self, token: re.Match[str]) -> str:
        if token["comment"]:
            return ""
        name, terminals = token["name"], self._terminals
        written = _rewritten(token)
        body = self._body(written)
        is_lost = name in terminals.lost or bool(token["regex"] and can_go_on_escaped(written))
        if is_lost or self._is_apart:
            apart = terminals.apart.get(name) if name else _apart(token)
            if apart is not None:
                self._lexemes.update(dict.fromkeys(apart.lexemes))
                self._singles.update(dict.fromkeys(apart.singles))
                return apart.expression
            if is_lost:
                raise SchemaError((), f"{cut(token[0], 80)} {_LOST}")
        self._lexemes[body] = None
        return written


def _apart(token: re.Match[str]) -> Apart | None:
    """A literal or an expression, as several lexemes; None if it cannot be done."""
    if token["string"] and not token["folds"]:
        return text_apart(_text_of(token["string"]))
    flags = token["flags"] or ""
    if token["regex"] and "i" not in flags:
        return repeated(_bare(token["regex"]), is_dotall="s" in flags)
    return None


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
        raise SchemaError((), f"{cut(literal, 40)} has an escape that is not JSON's") from error


def _in_class(character: str) -> str:
    return "".join(f"\\x{{{ord(each):x}}}" for each in character)
