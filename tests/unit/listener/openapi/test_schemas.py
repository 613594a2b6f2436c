from __future__ import annotations

import msgspec
import pytest

from luce.listener.dialects.ranges import RANGES
from luce.listener.openapi.schemas import schemas_of


class Inner(msgspec.Struct):
    """Inside."""

    value: int | None = None


class Asked(msgspec.Struct):
    """What is asked.

    It has a second paragraph.

    Attributes:
        one, two: come together,
            and over two lines.
        nothing: is no field.
    """

    one: str
    two: Inner | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    logit_bias: dict[int, float] | None = None


class Told(msgspec.Struct):
    """What is told."""

    sure: str
    usual: str = "x"
    perhaps: str | msgspec.UnsetType = msgspec.UNSET


class Sparse(msgspec.Struct, omit_defaults=True):
    """What is told briefly."""

    sure: str
    usual: str = "x"


def test_docstrings_describe_the_fields() -> None:
    found, named = schemas_of([Asked], [])
    assert found[Asked] == {"$ref": "#/components/schemas/Asked"}
    asked = named["Asked"]
    assert asked["description"] == "What is asked.\n\nIt has a second paragraph."
    fields = asked["properties"]
    assert fields["one"]["description"] == "come together, and over two lines."
    assert fields["two"]["description"] == "come together, and over two lines."
    assert "description" not in fields["n"]
    assert "nothing" not in fields


def test_absent_is_no_default() -> None:
    _, named = schemas_of([Asked], [])
    assert named["Inner"]["properties"] == {
        "value": {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    }
    assert named["Asked"]["required"] == ["one"]


def test_ranges_are_told() -> None:
    _, named = schemas_of([Asked], [])
    fields = named["Asked"]["properties"]
    assert fields["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 100}
    assert fields["top_p"]["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    high = int(RANGES["n"].high)
    assert fields["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": high}
    assert fields["logit_bias"]["anyOf"][0]["propertyNames"] == {"pattern": "^[0-9]+$"}


def test_what_is_always_sent_is_required() -> None:
    _, named = schemas_of([], [Told, Sparse])
    assert named["Told"]["required"] == ["sure", "usual"]
    assert named["Sparse"]["required"] == ["sure"]


def test_a_type_of_both_directions_is_as_open_as_requests_are() -> None:
    _, named = schemas_of([Inner], [Inner])
    assert "required" not in named["Inner"] or named["Inner"]["required"] == []


def test_two_types_of_one_name_are_told_apart() -> None:
    from luce.listener.dialects import anthropic_wire, openai_wire

    found, named = schemas_of([anthropic_wire.Message, openai_wire.Message], [])
    assert {schema["$ref"].rpartition("/")[2] for schema in found.values()} == {
        "anthropic_wire.Message",
        "openai_wire.Message",
    }
    assert named["openai_wire.Message"]["properties"]["role"]["enum"]


@pytest.mark.parametrize("kind", [dict[str, int], str])
def test_plain_types_have_no_name(kind: type) -> None:
    found, named = schemas_of([], [kind])
    assert "$ref" not in found[kind]
    assert named == {}
