"""A JSON schema as part of a Lark grammar."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from luce.text.schema_apart import open_apart
from luce.text.schema_closing import close_objects
from luce.text.schema_error import SchemaError
from luce.text.schema_reader import SchemaReader
from luce.text.schema_shape import check_shape

_log = logging.getLogger(__name__)

WHITE_SPACE = r"[ ]|\n[ ]{0,40}"
"""At each place where JSON allows white space: a space, or a line end and an indent.

A model keeps the layout it was taught, on one line or indented. Unbounded, small models write
line ends until their budget is used up: white space is all they find likely in an object that
they do not know how to go on with.
"""

_SHORT_ESCAPES = 'nrbtf\\"'
_NEEDS_CODES = re.compile(r"\\u00[01]|\\u007f")


def read_schema(schema: Any) -> dict[str, Any]:
    """A client's schema, fit for `json_rule`.

    Raises:
        SchemaError: output cannot be held to it.
    """
    clean = SchemaReader(schema).read()
    return _fit(clean)


def read_schema_leniently(schema: Any, name: str) -> dict[str, Any]:
    """As `read_schema`, without what cannot be enforced; any object if nothing is left.

    Args:
        name: whose schema it is, for the log.
    """
    reader = SchemaReader(schema, is_lenient=True)
    try:
        clean = _fit(reader.read())
    except SchemaError as error:
        _log.info("tool schema is not enforced", extra={"tool": name, "why": error.why})
        return {"type": "object"}
    if reader.dropped:
        dropped = ", ".join(".".join(path) for path in reader.dropped[:8])
        _log.info("tool schema is enforced in part", extra={"tool": name, "without": dropped})
    return clean


def _fit(clean: dict[str, Any]) -> dict[str, Any]:
    check_shape(clean)
    close_objects(clean)
    open_apart(clean)
    return clean


def json_rule(clean: dict[str, Any]) -> str:
    """The part of a grammar that stands for JSON valid for a schema.

    Escapes by number are left out, so that no name can be spelled in two ways and pass for
    another; they stay where the schema itself has characters that cannot be written without.
    """
    text = json.dumps(clean)
    options = {"whitespace_pattern": WHITE_SPACE}
    if not _NEEDS_CODES.search(text):
        options["json_allowed_escapes"] = _SHORT_ESCAPES
    return "%json " + json.dumps({"x-guidance": options, **clean})
