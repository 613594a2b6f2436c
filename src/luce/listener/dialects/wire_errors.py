"""JSON that is not what a wire struct wants, told in terms of the client's field."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from luce.errors import InvalidRequest
from luce.units import cut

T = TypeVar("T")

MAX_STRINGS = 500_000
"""Most strings of a body, names of fields included: a tenth of a second of decoding."""

MAX_VALUES = 1_000_000
"""Most values of a body: as many token ids take up to half a second to decode and check."""

MAX_PROBLEM_CHARACTERS = 256
"""Longest description of what is wrong with a field; the decoder quotes the whole of a text."""

_WHERE = re.compile(r"^(?P<problem>.*) - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$", re.DOTALL)
# The first half of a pair, and behind it something else than the beginning of the second.
_HALF_PAIR = re.compile(
    rb"(?<!\\)(?:\\\\)*(?P<half>\\u[dD][89abAB][0-9a-fA-F]{2})"
    rb"(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F])"
)
_ENTRY = re.compile(r"^(?P<field>\w+)\[\.\.\.\](?P<rest>.*)$", re.DOTALL)
"""Some entry of an object at the top; the only objects whose entries are of a type stand there."""
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`$")


def decode_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a request body.

    Raises:
        InvalidRequest: not JSON, too deeply nested, or a field has the wrong type; `param` is
            that field.
    """
    _check_num_values(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), decoder, body) from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply.") from error
    except ValueError as error:
        problem = _half_pair(body) or _lower_first(str(error))
        raise InvalidRequest(f"The body is not valid JSON: {problem}.") from error


def _half_pair(body: bytes) -> str | None:
    """Where a text has half of a surrogate pair; near its end the decoder calls it cut short."""
    found = _HALF_PAIR.search(body)
    return found and f"half of a surrogate pair (byte {found.start('half')})"


def _check_num_values(body: bytes) -> None:
    """Millions of values take seconds to decode, with the event loop waiting.

    They are counted by what stands between them. Texts have commas and brackets as well, but
    those with this many are longer than any model's context.
    """
    if len(body) < 2 * MAX_STRINGS:
        return
    # A quote after an even number of backslashes ends a string; counting pairs is close enough.
    quotes = body.count(b'"') - body.count(b'\\"') + body.count(b'\\\\"')
    if quotes // 2 > MAX_STRINGS:
        raise InvalidRequest(f"The body has more than {MAX_STRINGS} strings; send fewer.")
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise InvalidRequest(f"The body has more than {MAX_VALUES} values; send fewer.")


def _field_error(text: str, decoder: msgspec.json.Decoder[T], body: bytes) -> InvalidRequest:
    where = _WHERE.match(text)
    problem = where["problem"] if where else text
    path = where["path"] if where else ""
    entry = _ENTRY.match(f"{path}[...]" if where and where["key"] else path)
    if entry:
        is_same = partial(_is_refused, decoder, entry["field"], text)
        key = _first_refused(body, entry["field"], is_same)
        path = entry["field"] if key is None else f"{entry['field']}.{cut(key)}{entry['rest']}"
    missing = _MISSING.match(problem)
    if missing:
        param = f"{path}.{missing['field']}" if path else missing["field"]
        return InvalidRequest(f"{param} is required.", param=param)
    problem = cut(problem, MAX_PROBLEM_CHARACTERS)
    if not path:
        return InvalidRequest(f"The body is wrong: {_lower_first(problem)}.")
    what = path
    if where and where["key"]:
        what = f"a key of {path}" if path == where["path"] else f"the key of {path}"
    elif entry and path == entry["field"]:
        what = f"an entry of {path}"
    return InvalidRequest(f"{what} is wrong: {_lower_first(problem)}.", param=path)


def _first_refused(
    body: bytes, field: str, is_refused: Callable[[dict[str, msgspec.Raw]], bool]
) -> str | None:
    """Key of the entry of an object that the decoder, which does not say, could not take.

    None where it cannot be told: what follows is no JSON, or the object stands there twice.
    """
    try:
        whole = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        entries = list(msgspec.json.decode(whole[field], type=dict[str, msgspec.Raw]).items())
    except (ValueError, RecursionError):
        return None
    while len(entries) > 1:
        half = len(entries) // 2
        is_before = is_refused(dict(entries[:half]))
        entries = entries[:half] if is_before else entries[half:]
    return entries[0][0] if entries and is_refused(dict(entries)) else None


def _is_refused(
    decoder: msgspec.json.Decoder[T], field: str, text: str, entries: dict[str, msgspec.Raw]
) -> bool:
    """Whether some entries of an object are refused in the same words."""
    try:
        decoder.decode(msgspec.json.encode({field: entries}))
    except msgspec.ValidationError as error:
        return str(error) == text
    return False


def _lower_first(text: str) -> str:
    is_abbreviation = text[:2].isupper()
    return text if is_abbreviation else text[:1].lower() + text[1:]
