"""Which lexemes of a Lark grammar can be looked for at the same place.

The parser tells its lexer at each place what may come there, so only those can take each other's
text. What may come is found as if a rule ended wherever any use of it does: too much, never too
little.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"(?P<nothing>\s+|(?://|\#)[^\n]*|->\s*\w+)"
    r'|(?P<lexeme>"(?:[^"\\\n]|\\.)*"i?|/(?!/)(?:[^/\\\n]|\\.)+/[a-z]*)'
    r"|(?P<times>~\s*\d+(?:\s*\.\.\s*\d+)?|\{\d*(?:,\d*)?\}|[*+?])"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<mark>[()\[\]|])"
    r"|(?P<piece>[<>])"
    r"|(?P<other>.)",
    re.DOTALL,
)
MAX_PLACES = 400
"""Lexemes in rules."""
MAX_TRIED = 200
"""Pairs of different lexemes, and kinds of places, that are tried: 2 to 10 ms each on a busy core.
"""


class UnreadRules(Exception):
    """Rules have parts that are not understood here, or are too many."""


@dataclass(frozen=True, slots=True)
class Place:
    """A lexeme in a rule.

    Attributes:
        lexeme: as the rule has it: a literal, an expression or a terminal's name.
        inside: bits of the places that may come behind it in what was one lexeme with it.
        outside: bits of those that may come behind that lexeme, if the place may end it.
    """

    lexeme: str
    inside: int
    outside: int

    @property
    def following(self) -> int:
        """Bits of all that may come behind it."""
        return self.inside | self.outside


@dataclass(slots=True)
class _Graph:
    """Rules as steps from node to node: over lexemes, or over nothing.

    Attributes:
        free: by node, those that are reached over nothing.
        lexemes: each with its nodes.
        apart: nodes of what was one lexeme, by the last of them.
    """

    free: list[list[int]] = field(default_factory=list)
    lexemes: list[tuple[str, int, int]] = field(default_factory=list)
    apart: dict[int, range] = field(default_factory=dict)

    def node(self) -> int:
        self.free.append([])
        return len(self.free) - 1

    def places(self, start: int, empty: Container[str]) -> tuple[list[Place], int]:
        """All places, and the bits of those at the start."""
        begun = [0] * len(self.free)
        for index, (lexeme, source, target) in enumerate(self.lexemes):
            begun[source] |= 1 << index
            if lexeme in empty:
                self.free[source].append(target)
        behind: dict[int, int] = {}
        for node in {start, *self.apart, *(target for _, _, target in self.lexemes)}:
            behind[node] = self._reached(node, begun)[0]
        places = []
        for lexeme, _, target in self.lexemes:
            inside, outside = 0, behind[target]
            for last, nodes in self.apart.items():
                if target in nodes:
                    inside, ends = self._reached(target, begun, last, nodes)
                    outside = behind[last] if ends else 0
            places.append(Place(lexeme, inside, outside))
        return places, behind[start]

    def _reached(
        self, node: int, begun: list[int], last: int = -1, nodes: Container[int] | None = None
    ) -> tuple[int, bool]:
        """Bits of the places that come next up to a last node, and whether that is reached."""
        seen, left, bits = {node}, [node], 0
        while left:
            at = left.pop()
            if at == last:
                continue
            bits |= begun[at]
            new = [
                each
                for each in self.free[at]
                if each not in seen and (nodes is None or each in nodes)
            ]
            seen.update(new)
            left += new
        return bits, last in seen


class _Reader:
    """Makes a graph of rules."""

    def __init__(self, rules: Mapping[str, str], terminals: Iterable[str]) -> None:
        self.graph = _Graph()
        self._terminals = frozenset(terminals)
        self._ends = {name: (self.graph.node(), self.graph.node()) for name in rules}
        for name, body in rules.items():
            self._read(body, *self._ends[name])

    def start(self) -> int:
        return self._ends["start"][0]

    def _read(self, body: str, first: int, last: int) -> None:
        free = self.graph.free
        groups, at, thing = [(first, last)], first, (first, first)
        for token in _TOKEN.finditer(body):
            if token["nothing"]:
                continue
            if token["piece"]:
                if token[0] == ">":
                    self.graph.apart[thing[1]] = range(thing[0], len(free))
                continue
            if token["times"]:
                self._repeat(*thing, token["times"])
            elif token[0] == "|":
                free[at].append(groups[-1][1])
                at = groups[-1][0]
            elif token[0] in (")", "]"):
                thing = groups.pop()
                free[at].append(thing[1])
                if token[0] == "]":
                    free[thing[0]].append(thing[1])
                at = thing[1]
            else:
                thing = self.graph.node(), self.graph.node()
                free[at].append(thing[0])
                if token["mark"]:
                    groups.append(thing)
                    at = thing[0]
                else:
                    self._step(token, *thing)
                    at = thing[1]
            if not groups:
                raise UnreadRules
        free[at].append(last)

    def _repeat(self, first: int, last: int, times: str) -> None:
        if times != "+":
            self.graph.free[first].append(last)
        if times != "?":
            self.graph.free[last].append(first)

    def _step(self, token: re.Match[str], first: int, last: int) -> None:
        name = token["name"]
        if token["lexeme"] or name in self._terminals:
            if len(self.graph.lexemes) >= MAX_PLACES:
                raise UnreadRules
            self.graph.lexemes.append((token[0], first, last))
        elif name in self._ends:
            entry, end = self._ends[name]
            self.graph.free[first].append(entry)
            self.graph.free[end].append(last)
        else:
            raise UnreadRules


class Rows:
    """Places that may be open at once, of all of a grammar's rules.

    Args:
        rules: their bodies by name; one is `start`. What was one lexeme is between < and >.
        terminals: names that are lexemes.
        have_common: whether two lexemes match the same text.

    Attributes:
        places: all of them.

    Raises:
        UnreadRules: nothing can be said of the rules.
    """

    def __init__(
        self,
        rules: Mapping[str, str],
        terminals: Iterable[str],
        have_common: Callable[[str, str], bool],
    ) -> None:
        if "start" not in rules:
            raise UnreadRules
        self._try = have_common
        self._tried: dict[frozenset[str], bool] = {}
        reader = _Reader(rules, terminals)
        lexemes = {lexeme for lexeme, _, _ in reader.graph.lexemes}
        empty = {lexeme for lexeme in lexemes if self._have_common(lexeme, '""')}
        self.places, start = reader.graph.places(reader.start(), empty)
        self._beside = [0] * len(self.places)
        self._early = [0] * len(self.places)
        self._left: list[tuple[int, int]] = []
        self._note(start, start)
        while self._left:
            self._follow(*self._left.pop())

    def groups(self) -> list[tuple[list[Place], list[Place], list[Place]]]:
        """Places with the same others beside them, and all those, themselves among them.

        Third are those of the others that are open only because what was one lexeme could have
        ended before the places.

        Raises:
            UnreadRules: there are too many kinds of them.
        """
        together: dict[tuple[int, int], list[Place]] = {}
        for place, *others in zip(self.places, self._beside, self._early, strict=True):
            if others[0]:
                together.setdefault((others[0], others[1]), []).append(place)
        if len(together) > MAX_TRIED:
            raise UnreadRules
        return [
            (places, list(self.of(beside)), list(self.of(early)))
            for (beside, early), places in together.items()
        ]

    def of(self, bits: int) -> Iterator[Place]:
        """The places that bits stand for."""
        return (self.places[index] for index in _indices(bits))

    def _have_common(self, one: str, other: str) -> bool:
        if one == other:
            return True
        if one[-1] == other[-1] == '"':
            return bool(json.loads(one) == json.loads(other))
        pair = frozenset((one, other))
        if pair not in self._tried:
            if len(self._tried) >= MAX_TRIED:
                raise UnreadRules
            self._tried[pair] = self._try(one, other)
        return self._tried[pair]

    def _follow(self, index: int, other: int) -> None:
        """See what may be open behind two places that were open at once."""
        one, two = self.places[index], self.places[other]
        if not self._have_common(one.lexeme, two.lexeme):
            return
        both = one.following | two.following
        self._note(both, both)
        for inner in _indices(one.inside | two.inside):
            self._early[inner] |= one.outside | two.outside

    def _note(self, some: int, others: int) -> None:
        for index in _indices(some):
            new = others & ~self._beside[index]
            self._beside[index] |= new
            self._left += ((index, other) for other in _indices(new))


def _indices(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
