"""Wire structs of what an answer must look like."""

from __future__ import annotations

from typing import Any

import msgspec


class JsonSchema(msgspec.Struct, omit_defaults=True):
    """A schema, what it is called and what it is for.

    Attributes:
        strict: checked for its type only.
    """

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, omit_defaults=True):
    """`response_format` of chat and legacy completions.

    Attributes:
        json_schema: of the type of this name.
        schema: of `json_object`, as some clients write it.
    """

    type: str
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class TextFormat(msgspec.Struct, omit_defaults=True):
    """`text.format` of Responses, and the formats of Messages: all on one level."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
