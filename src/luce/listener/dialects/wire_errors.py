"""JSON that is not what a wire struct wants, told in terms of the client's field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from luce.errors import InvalidRequest

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
        raise _field_error(str(error)) from error
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


def _field_error(text: str) -> InvalidRequest:
    where = _WHERE.match(text)
    problem = where["problem"] if where else text
    path = where["path"] if where else ""
    missing = _MISSING.match(problem)
    if missing:
        param = f"{path}.{missing['field']}" if path else missing["field"]
        return InvalidRequest(f"{param} is required.", param=param)
    if len(problem) > MAX_PROBLEM_CHARACTERS:
        problem = f"{problem[:MAX_PROBLEM_CHARACTERS]} ..."
    if not path:
        return InvalidRequest(f"The body is wrong: {_lower_first(problem)}.")
    what = f"a key of {path}" if where and where["key"] else path
    return InvalidRequest(f"{what} is wrong: {_lower_first(problem)}.", param=path)


def _lower_first(text: str) -> str:
    is_abbreviation = text[:2].isupper()
    return text if is_abbreviation else text[:1].lower() + text[1:]
