"""The words of JSON schema that are told apart."""

from __future__ import annotations

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
"""Enforced. Names that no standard has are annotations."""

UNSERVED_FORMATS = frozenset(
    [
        "idn-email",
        "idn-hostname",
        "uri-reference",
        "iri",
        "iri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
        "regex",
    ]
)
"""Of the standard, and not enforced."""

UNSERVED = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "dependentSchemas",
        "dependentRequired",
        "dependencies",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$recursiveRef",
    ]
)
"""Keywords of the standard that say something about values and cannot be enforced."""

COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
