"""SchemaReader: a client's JSON schema becomes one that output can be held to, or is refused.

A schema comes from outside and is compiled by native code that trusts it: a chain of a few
thousand references ends the process, twenty `oneOf` lists of a thousand values take seconds. So
size, depth and the costly keywords are bounded here first. Keywords that say something about
values and cannot be enforced are refused, unless the reader is lenient; annotations are left out.
References are gathered under `$defs` at the root, so that the result can be put anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from luce.text.regex_check import regex_fault
from luce.text.schema_error import SchemaError
from luce.text.schema_keywords import (
    COUNTS,
    FORMATS,
    NUMBERS,
    TYPES,
    UNSERVED,
    UNSERVED_FORMATS,
)
from luce.units import quoted

MAX_NODES = 20_000
"""Schemas, and values of `enum` and `const`, in one schema."""
MAX_ONE_OF_NODES = 5_000
"""The same where there is a `oneOf`: its members are compared value by value."""
MAX_DEPTH = 50
"""Brackets inside each other."""
MAX_CHARS = 1 << 19
"""All strings of one schema together."""
MAX_PROPERTIES = 1_000
"""Of one object; those that may be left out cost their number's square."""
MAX_PATTERN_PROPERTIES = 30
"""Of one object: each is compared with each other."""
MAX_ALL_PATTERN_PROPERTIES = 300
MAX_MEMBERS = 200
"""Of one `oneOf` or `allOf`."""
MAX_DIVISOR = 10_000
"""Of all `multipleOf` together, decimals shifted away: an automaton has a state for each
remainder."""
MAX_COUNT = 1_000_000
"""Lengths and numbers of items."""
MAX_INTEGER = 9_200_000_000_000_000_000
"""Integers are between this and its negative: what a signed word of 64 bits holds. Small models
write digits until their budget is used up if nothing ends the number."""

_LOW = ("minimum", "exclusiveMinimum")
_HIGH = ("maximum", "exclusiveMaximum")

_ANNOTATION = object()

Path = tuple[str, ...]
Clean = dict[str, Any]


class SchemaReader:
    """Reads one schema, once.

    Args:
        root: the schema, plain JSON.
        is_lenient: keywords that cannot be enforced are left out.

    Attributes:
        dropped: what was left out: paths of keywords.
    """

    def __init__(self, root: Any, *, is_lenient: bool = False) -> None:
        self._root = root
        self._is_lenient = is_lenient
        self._num_nodes = 0
        self._num_chars = 0
        self._num_patterns = 0
        self._divisors = 0
        self._has_one_of = False
        self._names: dict[str, str] = {}
        self._waiting: list[tuple[str, Any, Path]] = []
        self.dropped: list[Path] = []

    def read(self) -> Clean:
        """The schema, with all it refers to under `$defs`.

        Raises:
            SchemaError: it is broken, too large, or asks for what cannot be enforced.
        """
        result = self._schema(self._root, (), 0)
        if result is False:
            raise SchemaError((), "the schema is false, so that nothing is valid")
        clean = result if isinstance(result, dict) else {}
        definitions: Clean = {}
        while self._waiting:
            name, target, path = self._waiting.pop()
            definitions[name] = self._schema(target, path, 0)
        if definitions:
            clean = {"$defs": definitions, **clean}
        if self._has_one_of and self._num_nodes > MAX_ONE_OF_NODES:
            why = f"a schema with oneOf has more than {MAX_ONE_OF_NODES} parts"
            raise SchemaError((), why, is_limit=True)
        return clean

    # --- schemas ---------------------------------------------------------------------------

    def _schema(self, value: Any, path: Path, depth: int) -> Clean | bool:
        self._count_node(path, depth)
        if isinstance(value, bool):
            return value
        if not isinstance(value, Mapping):
            raise SchemaError(path, "a schema must be an object, true or false")
        clean: Clean = {}
        for key, given in value.items():
            self._count_text(key, path)
            self._keyword(clean, key, given, (*path, key), depth + 1)
        self._old_tuple(clean)
        self._bound_numbers(clean, path)
        return clean

    def _bound_numbers(self, clean: Clean, path: Path) -> None:
        """Refuse bounds the compiler cannot count with; end integers where it does."""
        kinds = clean.get("type", ())
        kinds = (kinds,) if isinstance(kinds, str) else kinds
        is_integer = "integer" in kinds and "number" not in kinds
        for words, side in ((_LOW, 1), (_HIGH, -1)):
            for word in words:
                bound = clean.get(word, 0) * side
                if abs(bound) <= MAX_INTEGER:
                    continue
                del clean[word]
                if bound > 0 or not is_integer:  # Else ours is narrower, and takes its place.
                    why = f"bounds of numbers are from -{MAX_INTEGER} to {MAX_INTEGER}"
                    self._refuse((*path, word), why)
        if is_integer and not clean.keys() & set(_LOW):
            clean["minimum"] = -MAX_INTEGER
        if is_integer and not clean.keys() & set(_HIGH):
            clean["maximum"] = MAX_INTEGER

    def _keyword(self, clean: Clean, key: str, given: Any, path: Path, depth: int) -> None:
        if key in _READERS:
            self._value(clean, key, given, path, depth)
        elif key in UNSERVED and not _says_nothing(key, given):
            self._refuse(path, f"{key} cannot be enforced")

    def _value(self, clean: Clean, key: str, given: Any, path: Path, depth: int) -> None:
        try:
            result = _READERS[key](self, given, path, depth)
        except SchemaError as error:
            # What is wrong deeper down was left out there.
            if not self._is_lenient or error.is_limit:
                raise
            self.dropped.append(error.path)
            return
        if result is not _ANNOTATION:
            clean[key] = result

    def _refuse(self, path: Path, why: str) -> None:
        if not self._is_lenient:
            raise SchemaError(path, why)
        self.dropped.append(path)

    def _sub(self, given: Any, path: Path, depth: int) -> Clean | bool:
        return self._schema(given, path, depth)

    def _items(self, given: Any, path: Path, depth: int) -> Any:
        if isinstance(given, list):  # Older drafts: one schema for each place.
            return self._list(given, path, depth)
        return self._schema(given, path, depth)

    def _list(self, given: Any, path: Path, depth: int) -> list[Any]:
        if not isinstance(given, list):
            raise SchemaError(path, f"{path[-1]} must be a list of schemas")
        return [self._schema(one, (*path, str(i)), depth + 1) for i, one in enumerate(given)]

    def _members(self, given: Any, path: Path, depth: int) -> list[Any]:
        members = self._list(given, path, depth)
        self._has_one_of |= path[-1] == "oneOf"
        if path[-1] != "anyOf" and len(members) > MAX_MEMBERS:
            raise SchemaError(path, f"more than {MAX_MEMBERS} members", is_limit=True)
        return members

    def _map(self, given: Any, path: Path, depth: int) -> Clean:
        if not isinstance(given, Mapping):
            raise SchemaError(path, f"{path[-1]} must be an object")
        most = MAX_PROPERTIES if path[-1] == "properties" else MAX_PATTERN_PROPERTIES
        if len(given) > most:
            raise SchemaError(path, f"more than {most} {path[-1]}", is_limit=True)
        return {
            self._count_text(key, path): self._schema(one, (*path, key), depth + 1)
            for key, one in given.items()
        }

    def _patterns(self, given: Any, path: Path, depth: int) -> Clean:
        patterns = self._map(given, path, depth)
        self._num_patterns += len(patterns)
        if self._num_patterns > MAX_ALL_PATTERN_PROPERTIES:
            why = f"more than {MAX_ALL_PATTERN_PROPERTIES} patternProperties in all"
            raise SchemaError((), why, is_limit=True)
        for pattern in patterns:
            _regex(pattern, (*path, pattern))
        return patterns

    def _reference(self, given: Any, path: Path, _depth: int) -> str:
        if not isinstance(given, str):
            raise SchemaError(path, "$ref must be a string")
        if not given.startswith("#"):
            raise SchemaError(path, "$ref must point into the schema itself: #/$defs/...")
        name = self._names.get(given)
        if name is None:
            name = f"d{len(self._names)}"
            steps = tuple(_unescaped(step) for step in given[1:].split("/")[1:])
            if given[1:2] not in ("", "/"):
                raise SchemaError(path, "$ref to an anchor is not supported; use #/$defs/...")
            self._waiting.append((name, self._target(steps, path, given), steps))
            self._names[given] = name
        return f"#/$defs/{name}"

    def _target(self, steps: Path, path: Path, reference: str) -> Any:
        found = self._root
        for step in steps:
            if isinstance(found, Mapping) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and int(step[:9]) < len(found):
                found = found[int(step)]
            else:
                raise SchemaError(
                    path, f"$ref points to {quoted(reference, 200)}, which is not there"
                )
        return found

    @staticmethod
    def _old_tuple(clean: Clean) -> None:
        rest = clean.pop("additionalItems", None)
        if isinstance(clean.get("items"), list):
            clean["prefixItems"] = clean.pop("items")
            if rest is not None:
                clean["items"] = rest

    # --- other values ------------------------------------------------------------------------

    def _type(self, given: Any, path: Path, _depth: int) -> Any:
        kinds = given if isinstance(given, list) else [given]
        for kind in kinds:
            if not isinstance(kind, str) or kind not in TYPES:
                raise SchemaError(
                    path, f"type is {quoted(str(kind))}; use {', '.join(sorted(TYPES))}"
                )
        if not kinds:
            raise SchemaError(path, "type must not be an empty list")
        return given

    def _required(self, given: Any, path: Path, _depth: int) -> list[str]:
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise SchemaError(path, "required must be a list of names")
        if len(given) > MAX_PROPERTIES:
            raise SchemaError(path, f"more than {MAX_PROPERTIES} names", is_limit=True)
        return [self._count_text(name, path) for name in given]

    def _pattern(self, given: Any, path: Path, _depth: int) -> str:
        if not isinstance(given, str):
            raise SchemaError(path, "pattern must be a string")
        self._count_text(given, path)
        _regex(given, path)
        return given

    def _format(self, given: Any, path: Path, _depth: int) -> Any:
        if not isinstance(given, str):
            raise SchemaError(path, "format must be a string")
        if given in UNSERVED_FORMATS:
            raise SchemaError(path, f"format {given} cannot be enforced")
        return given if given in FORMATS else _ANNOTATION

    def _size(self, given: Any, path: Path, _depth: int) -> int:
        number = self._number(given, path, _depth)
        if not 0 <= number <= MAX_COUNT or number != int(number):
            raise SchemaError(path, f"{path[-1]} must be a whole number from 0 to {MAX_COUNT}")
        return int(number)

    def _number(self, given: Any, path: Path, _depth: int) -> int | float:
        if isinstance(given, bool) or not isinstance(given, int | float) or given - given != 0:
            raise SchemaError(path, f"{path[-1]} must be a number")
        return given

    def _divisor(self, given: Any, path: Path, depth: int) -> int | float:
        number = self._number(given, path, depth)
        digits = Decimal(repr(number)).normalize().as_tuple().digits
        if number > 0 and len(digits) < 10:
            self._divisors += int("".join(map(str, digits)))
        if number <= 0 or len(digits) > 9 or self._divisors > MAX_DIVISOR:
            why = (
                f"multipleOf must be above 0, and all together at most {MAX_DIVISOR}, points aside"
            )
            raise SchemaError(path, why)
        return number

    def _values(self, given: Any, path: Path, depth: int) -> list[Any]:
        if not isinstance(given, list) or not given:
            raise SchemaError(path, "enum must be a list with values in it")
        return [self._constant(one, (*path, str(i)), depth) for i, one in enumerate(given)]

    def _constant(self, given: Any, path: Path, depth: int) -> Any:
        self._count_node(path, depth)
        if isinstance(given, str):
            self._count_text(given, path)
        elif isinstance(given, list):
            for one in given:
                self._constant(one, path, depth + 1)
        elif isinstance(given, Mapping):
            for key, one in given.items():
                self._count_text(key, path)
                self._constant(one, path, depth + 1)
        return given

    # --- bounds ------------------------------------------------------------------------------

    def _count_node(self, path: Path, depth: int) -> None:
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise SchemaError((), f"the schema has more than {MAX_NODES} parts", is_limit=True)
        if depth > MAX_DEPTH:
            raise SchemaError(path[:8], f"nested more than {MAX_DEPTH} deep", is_limit=True)

    def _count_text(self, text: str, path: Path) -> str:
        self._num_chars += len(text)
        if self._num_chars > MAX_CHARS:
            raise SchemaError((), f"more than {MAX_CHARS} characters", is_limit=True)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SchemaError(path, "half of a surrogate pair", is_limit=True) from None
        return text


def _regex(pattern: str, path: Path) -> None:
    fault = regex_fault(pattern)
    if fault is not None:
        raise SchemaError(path, fault)


def _says_nothing(key: str, given: Any) -> bool:
    """Whether a keyword that cannot be enforced allows everything."""
    return given is (not key.startswith("unique")) and key.startswith(("unique", "unevaluated"))


def _unescaped(step: str) -> str:
    return unquote(step).replace("~1", "/").replace("~0", "~")


_READERS: Mapping[str, Any] = {
    "$ref": SchemaReader._reference,
    "type": SchemaReader._type,
    "required": SchemaReader._required,
    "pattern": SchemaReader._pattern,
    "format": SchemaReader._format,
    "multipleOf": SchemaReader._divisor,
    "enum": SchemaReader._values,
    "const": SchemaReader._constant,
    "items": SchemaReader._items,
    "properties": SchemaReader._map,
    "patternProperties": SchemaReader._patterns,
    "prefixItems": SchemaReader._list,
    **dict.fromkeys(("additionalItems", "additionalProperties"), SchemaReader._sub),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), SchemaReader._members),
    **dict.fromkeys(COUNTS, SchemaReader._size),
    **dict.fromkeys(NUMBERS, SchemaReader._number),
}
"""What keeps each keyword; keywords that are in neither this nor `UNSERVED` are annotations."""
