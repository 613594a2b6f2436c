"""Regular expressions of texts, turned into those of the same texts inside a JSON string.

All that stands for text in an expression are single characters and sets of them; what combines
them stays as it is, for escaping a text is escaping its characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from luce.grammar import NOTHING_VALID, GrammarFault, GrammarVocabulary
from luce.text.schema_error import SchemaError
from luce.units import quoted

_ESCAPES = {'"': '"', "\\": "\\\\", "\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
"""Characters that JSON escapes, and what follows the backslash, as it stands in a class."""
_LETTERS = {r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\f": "\f"}
_PLAIN = r'[^"\\\x00-\x1f]'

_GROUP = re.compile(r"\(\?(?:P?<\w+>|([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)]))")
_SET_ESCAPE = re.compile(
    r"\\(?:[pP](?:\{[^}]*\}|[A-Za-z])|x\{[^}]*\}|x[0-9A-Fa-f]{2}|[uU]\{[^}]*\}"
    r"|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)",
    re.DOTALL,
)
_BORDERS = frozenset("bBAzZG<>")
_COMBINES = frozenset("|)*+?{}^$")
_COUNT = re.compile(r"\{[0-9]+(?:,([0-9]*))?\}")
_ENDLESS = ("*", "+")
MAX_KEPT_CHARS = 1_000
"""Of a grammar whose fault is kept for the next time."""
MAX_COUNTED = 200
"""Characters counted one by one: each is a step of the parser, which the lexer's are not."""


@dataclass(frozen=True, slots=True)
class Insides:
    """A set of characters, as they stand in JSON.

    Attributes:
        plain: an expression for those that stand for themselves; empty if there are none.
        escaped: one for those that are escaped; empty if there are none.
    """

    plain: str
    escaped: str

    @property
    def any(self) -> str:
        """An expression for one of them."""
        both = [each for each in (self.escaped, self.plain) if each]
        return both[0] if len(both) == 1 else f"(?:{'|'.join(both)})"


@dataclass(frozen=True, slots=True)
class Apart:
    """What one lexeme matches, made of several, each of which ends where it must.

    Attributes:
        lexemes: for Lark: single escapes, and runs of plain characters, or single ones if they are
            counted.
        expression: of them, for a rule.
        singles: those of them that end where what was one lexeme might go on.
    """

    lexemes: tuple[str, ...]
    expression: str
    singles: tuple[str, ...]


def text_insides(text: str) -> str:
    """A text, as it stands in JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def text_apart(text: str) -> Apart:
    """A text in pieces: its escapes, and what stands between them."""
    pieces = re.findall(r'[^"\\\x00-\x1f]+|.', text, re.DOTALL)
    lexemes = [json.dumps(text_insides(piece), ensure_ascii=False) for piece in pieces or [""]]
    singles = (lexeme for lexeme in lexemes if lexeme[1] == "\\")
    return Apart(tuple(lexemes), f"({' '.join(lexemes)})", tuple(singles))


def pattern_insides(pattern: str, *, is_dotall: bool = False) -> str:
    """An expression for what another one matches, as it stands in JSON.

    Args:
        pattern: in Rust's syntax.
        is_dotall: a dot is any character.

    Raises:
        SchemaError: it has flags that mean something else then, or does not compile.
    """
    return _joined(_pieces(pattern, is_dotall=is_dotall))


def repeated(pattern: str, *, is_dotall: bool = False) -> Apart | None:
    """What an expression repeats, if it does nothing else.

    Raises:
        SchemaError: as `pattern_insides`.
    """
    pieces = list(_pieces(pattern, is_dotall=is_dotall))
    while _is_one_group(pieces):
        pieces = pieces[1:-1]
    *thing, quantifier = pieces or [""]
    if not isinstance(quantifier, str) or not _is_quantifier(quantifier):
        return None
    while _is_one_group(thing):
        thing = thing[1:-1]
    if len(thing) == 1 and isinstance(thing[0], Insides):
        return _apart(thing, quantifier, "+" if quantifier in _ENDLESS else "")
    if not _is_one_group(pieces[:-1]):
        return None
    if all(isinstance(piece, Insides) or piece == "?" for piece in thing):
        return _apart(thing, quantifier)
    lexeme = slashed(_joined(thing))
    if can_go_on_escaped(lexeme):
        return None
    return Apart((lexeme,), f"({lexeme}{quantifier})", (lexeme,))


def _apart(thing: Sequence[str | Insides], quantifier: str, plain_times: str = "") -> Apart:
    """Sets of characters one after the other, some of them optional, again and again."""
    lexemes: list[str] = []
    singles: list[str] = []
    expression = ""
    for piece in thing:
        if isinstance(piece, str):
            expression += piece
            continue
        plain = slashed(f"{piece.plain}{plain_times}") if piece.plain else ""
        choices = [each for each in (plain, piece.escaped and slashed(piece.escaped)) if each]
        lexemes += choices
        singles += choices[1:] if plain and plain_times else choices
        expression += f" ({' | '.join(choices)})"
    return Apart(tuple(lexemes), f"(({expression}){quantifier})", tuple(singles))


def may_hold_escape(body: str) -> bool:
    """Whether a terminal's body, rewritten, has escapes in it; of others that is certain."""
    return "\\\\" in body.replace(_PLAIN, "")


def can_go_on_escaped(body: str, imports: str = "", *, behind: str = "") -> bool:
    """Whether a terminal that has matched a text may match more of it from a backslash on.

    A lexer never goes back: what comes behind the terminal could not begin with an escape then.

    Args:
        body: of a terminal, rewritten.
        imports: directives for what it takes from Lark.
        behind: body of another one that has matched the text, instead of the same.
    """
    if not may_hold_escape(body):
        return False
    some = f"{body}\nM: {behind or body}\nSOME: M & /(?s:.+)/"
    source = f"start: X\nN: {some}\nX: N & Y\nY: SOME /\\\\(?s:.*)/\n{imports}"
    return compile_fault(source) != NOTHING_VALID


def can_go_on_behind(single: str, body: str, imports: str = "") -> bool:
    """Whether a terminal may match more than a piece of what was one lexeme.

    Args:
        single: the piece, or several.
        body: of the terminal, rewritten.
        imports: as above.
    """
    source = f"start: X\nN: {body}\nX: N & Y\nY: ({single}) /(?s:.+)/\n{imports}"
    return compile_fault(source) != NOTHING_VALID


def begin_alike(one: str, other: str, imports: str = "") -> bool:
    """Whether a text of a terminal begins one of another, or is the same.

    Args:
        one: body of the terminal.
        other: the other's.
        imports: as above.
    """
    bodies = f"M: {one}\nN: {other}\n{imports}"
    return any(
        compile_fault(f"start: X\nX: {longer} & Y\nY: {shorter} /(?s:.*)/\n{bodies}")
        != NOTHING_VALID
        for longer, shorter in (("M", "N"), ("N", "M"))
    )


def have_common(one: str, other: str, imports: str = "") -> bool:
    """Whether two terminals match the same text.

    Args:
        one: its body.
        other: the other's.
        imports: as above.
    """
    source = f"start: X\nM: {one}\nN: {other}\nX: M & N\n{imports}"
    return compile_fault(source) != NOTHING_VALID


def compile_fault(source: str) -> str | None:
    """Why a grammar of bytes does not compile; None if it does."""
    return _small_fault(source) if len(source) <= MAX_KEPT_CHARS else _fault(source)


@lru_cache(maxsize=4096)
def _small_fault(source: str) -> str | None:
    return _fault(source)


def _fault(source: str) -> str | None:
    try:
        _bytes_vocabulary().compile(source)
    except GrammarFault as fault:
        return fault.why
    return None


def slashed(pattern: str) -> str:
    """An expression between slashes, for Lark."""
    return "/" + pattern.replace("/", "\\/").replace("\n", "\\n") + "/"


def _is_quantifier(piece: str) -> bool:
    count = _COUNT.fullmatch(piece)
    if count is None:
        return piece in (*_ENDLESS, "?")
    return max(int(number) for number in re.findall("[0-9]+", piece)) <= MAX_COUNTED


def _joined(pieces: Iterable[str | Insides]) -> str:
    return "".join(each if isinstance(each, str) else each.any for each in pieces)


def _is_one_group(pieces: Sequence[str | Insides]) -> bool:
    """Whether the first bracket is closed by the last."""
    if len(pieces) < 2 or not isinstance(pieces[0], str) or not pieces[0].startswith("("):
        return False
    depth = 0
    for index, piece in enumerate(pieces):
        if isinstance(piece, str):
            depth += piece.startswith("(") and not piece.endswith(")")
            depth -= piece == ")"
        if not depth:
            return index == len(pieces) - 1
    return False


def _pieces(pattern: str, *, is_dotall: bool) -> Iterator[str | Insides]:
    """The expression, piece by piece: sets of characters, and what combines them."""
    scopes, position = [is_dotall], 0
    while position < len(pattern):
        character = pattern[position]
        end = position + 1
        if character == "(":
            group = _GROUP.match(pattern, position)
            end = group.end() if group else end
            scope = _scope(group, scopes[-1]) if group else scopes[-1]
            if group and group[3] == ")":
                scopes[-1] = scope
            else:
                scopes.append(scope)
            yield pattern[position:end]
        elif count := _COUNT.match(pattern, position):
            end = count.end()
            yield count[0]
        elif character in _COMBINES:
            if character == ")" and len(scopes) > 1:
                scopes.pop()
            yield character
        else:
            end = _end_of_set(pattern, position)
            one = pattern[position:end]
            is_border = character == "\\" and one[1:2] in _BORDERS
            yield one if is_border else _insides("(?s:.)" if one == "." and scopes[-1] else one)
        position = end


def _scope(group: re.Match[str], is_dotall: bool) -> bool:
    """Whether a dot is any character inside a group, or behind flags."""
    on, off = group[1] or "", group[2] or ""
    if set(on + off) - set("isuU"):
        raise SchemaError((), "the flags m, x and R of expressions are not supported here")
    return "s" in on or (is_dotall and "s" not in off)


def _end_of_set(pattern: str, start: int) -> int:
    """Where the character, escape or class that begins at `start` ends."""
    if pattern[start] == "\\":
        found = _SET_ESCAPE.match(pattern, start)
        return found.end() if found else start + 1
    if pattern[start] != "[":
        return start + 1
    depth, position = 0, start
    while position < len(pattern):
        if pattern[position] == "\\":
            position += 1
        elif pattern[position] == "[":
            depth += 1
            # The first bracket of a class may stand for itself.
            position += pattern[position + 1 : position + 2] == "^"
            position += pattern[position + 1 : position + 2] == "]"
        elif pattern[position] == "]":
            depth -= 1
            if not depth:
                return position + 1
        position += 1
    return len(pattern)


def _insides(one: str) -> Insides:
    character = one[-1] if len(one) == 1 or (len(one) == 2 and not one[1].isalnum()) else ""
    character = _LETTERS.get(one, "" if one == "." else character)
    if not character:
        return _insides_of_set(one)
    letter = _ESCAPES.get(character)
    return Insides(one, "") if letter is None else Insides("", f"(?-i:\\\\[{letter}])")


@lru_cache(maxsize=4096)
def _insides_of_set(one: str) -> Insides:
    try:
        matcher = _bytes_vocabulary().compile(f"start: {slashed(one)}\n")
    except GrammarFault as fault:
        raise SchemaError((), f"{quoted(one, 40)} in an expression: {fault.why}") from fault
    held = [
        letter
        for character, letter in _ESCAPES.items()
        if matcher.deep_copy().try_consume_tokens([ord(character)])
    ]
    escaped = f"(?-i:\\\\[{''.join(held)}])" if held else ""
    if one in (".", "(?s:.)"):
        return Insides(_PLAIN, escaped)
    is_set = one[0] == "[" or (one[0] == "\\" and one[1:2] in "dDwWsSpP")
    if not is_set:
        return Insides("" if held else one, escaped)
    plain = f"[{one}&&{_PLAIN}]"
    if compile_fault(f"start: {slashed(plain)}\n") is not None:
        plain = ""
    return Insides(plain, escaped)


@cache
def _bytes_vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary([bytes([byte]) for byte in range(256)], [], [])
