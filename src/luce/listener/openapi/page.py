"""The OpenAPI document as one page of HTML that needs nothing else: no script, no other host."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from luce.listener.dialects.base import EVENT_STREAM_TYPE
from luce.listener.openapi.rules import Schema
from luce.listener.openapi.schemas import REF

_STYLE = """\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#1c1c1c;background:#fff}
code{font:.9em ui-monospace,monospace;background:#f2f2f2;padding:.1em .3em;border-radius:.2em}
h2{margin-top:2.5rem;border-bottom:1px solid #ccc}
h3{margin-top:2rem}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.25rem .6rem .25rem 0;border-top:1px solid #ddd}
a{color:#0a58a6}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}code{background:#2a2a2a}
a{color:#7db8f0}td,th{border-color:#333}h2{border-color:#555}}"""

_CODE = re.compile(r"`([^`]+)`")


def page_of(document: Mapping[str, Any]) -> str:
    """The page of an OpenAPI document of ours."""
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{_text(info['description'])}</p>",
        f"<p>{_text(_key_needed(document))} The same for programs: ",
        "<a href=/openapi.json><code>/openapi.json</code></a>.</p>",
    ]
    for tag in document["tags"]:
        parts.append(f"<h2>{escape(tag['name'])}</h2>")
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    parts += _operation(method, path, operation)
    parts.append("<h2>Types</h2>")
    for name, schema in document["components"]["schemas"].items():
        parts += _type(name, schema)
    return "\n".join(parts) + "\n"


def _key_needed(document: Mapping[str, Any]) -> str:
    if {} in document["security"]:
        return "This server asks for no key."
    return "A key is needed: `Authorization: Bearer KEY` or `x-api-key: KEY`."


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterable[str]:
    name = escape(operation["operationId"])
    yield f"<h3 id={name}><code>{method.upper()} {escape(path)}</code></h3>"
    yield f"<p>{_text(operation['summary'])} {_text(operation.get('description', ''))}</p>"
    if operation.get("security") == []:
        yield "<p>Needs no key.</p>"
    body = operation.get("requestBody")
    if body:
        content = body["content"]["application/json"]
        example = json.dumps(content["example"], indent=1, ensure_ascii=False)
        yield f"<p>Takes {_kind(content['schema'])}. For example:</p>"
        yield f"<pre>{escape(example, quote=False)}</pre>"
    yield "<table>"
    for status, response in operation["responses"].items():
        yield f"<tr><th>{status}<td>{_response(response)}"
    yield "</table>"


def _response(response: Mapping[str, Any]) -> str:
    lines = [_text(line) for line in response["description"].splitlines()]
    for media_type, content in response["content"].items():
        schema = content["schema"]
        told = _kind(schema)
        if media_type == EVENT_STREAM_TYPE:
            data = _kind(schema["properties"]["data"]["contentSchema"])
            told = f"{_text(schema['description'])} Data: {data}"
        lines.append(f"<code>{escape(media_type)}</code>: {told}")
    return "<br>".join(lines)


def _type(name: str, schema: Schema) -> Iterable[str]:
    yield f"<h3 id={_anchor(name)}>{escape(name)}</h3>"
    yield f"<p>{_text(schema.get('description', ''))}</p>"
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    if properties:
        yield "<table>"
        for field, described in properties.items():
            mark = "" if field in required else " <small>optional</small>"
            text = _text(described.get("description", ""))
            yield f"<tr><td><code>{escape(field)}</code>{mark}<td>{_kind(described)}<td>{text}"
        yield "</table>"


def _kind(schema: Schema) -> str:
    """What a value must be, in words and links."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(REF)
        return f"<a href=#{_anchor(name)}>{escape(name)}</a>"
    if "anyOf" in schema:
        return " or ".join(_kind(choice) for choice in schema["anyOf"])
    if "allOf" in schema:
        return " with ".join(_kind(part) for part in schema["allOf"])
    if "required" in schema and "type" not in schema:
        return ", ".join(f"<code>{escape(name)}</code>" for name in schema["required"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    kind = escape(str(schema.get("type", "anything")))
    if kind == "array" and schema.get("items"):
        kind = f"list of ({_kind(schema['items'])})"
    return kind + _bounds(schema)


def _bounds(schema: Schema) -> str:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "maxLength": "at most this long:",
        "maxItems": "at most this many:",
    }
    told = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    return f" ({', '.join(told)})" if told else ""


def _anchor(name: str) -> str:
    return "type-" + escape(name)


def _text(text: str) -> str:
    """Escaped, with `code` as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))
