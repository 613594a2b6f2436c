"""Objects keep to the properties they declare, where the schema leaves that open.

A schema without `additionalProperties` allows any others, and small models make them up without
end. What has only declared properties is valid just as well. Objects that several schemas
describe together are left as they are: each of them names only a part of the properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luce.text.schema_shape import children

Clean = dict[str, Any]


def close_objects(schema: Clean) -> None:
    """Add `additionalProperties: false` where it can be added; changes the schema.

    Args:
        schema: as `SchemaReader` gives it.
    """
    everything = [schema, *schema.get("$defs", {}).values()]
    parts = [part for one in everything for part in _parts(one)]
    if not any(map(_is_joined, parts)):
        for part in parts:
            _close(part)


def _parts(schema: Any) -> list[Clean]:
    if not isinstance(schema, dict):
        return []
    return [schema, *(part for child in children(schema) for part in _parts(child))]


def _is_joined(schema: Mapping[str, Any]) -> bool:
    sources = sum(word in schema for word in ("properties", "$ref", "anyOf", "oneOf"))
    return sources + len(schema.get("allOf", ())) > 1


def _close(schema: Clean) -> None:
    says_it = "additionalProperties" in schema or "patternProperties" in schema
    if says_it or "properties" not in schema:
        return
    if set(schema.get("required", ())) <= set(schema["properties"]):
        schema["additionalProperties"] = False
