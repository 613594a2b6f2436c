"""Keeps what clients sent, without the prose, for the tests that run without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from client_server import Exchange
from roster import RESULT, ROOT, Client

SHAPES = ROOT / "tests" / "http" / "client_shapes"
LONGEST = 100
"""Characters of a text that is kept. Longer ones and descriptions are somebody else's prose, and
of no interest."""
CUT = "(cut)"
_OF_THE_CONNECTION = {"host", "connection", "content-length", "accept-encoding"}


def record_shapes(client: Client, exchanges: list[Exchange], home: Path) -> None:
    """Write the first request with tools, the one with the tool's result, and one without tools.

    Args:
        client: who sent them.
        exchanges: of its endpoint.
        home: a folder of this machine, which is not written.
    """
    with_tools = [e for e in exchanges if e.json.get("tools")]
    without = [e for e in exchanges if not e.json.get("tools")]
    steps = {"first": with_tools[0], "result": with_tools[1]}
    if without:
        steps["title"] = without[0]
    for step, exchange in steps.items():
        record_shape(client, step, exchange, home)


def record_shape(client: Client, step: str, exchange: Exchange, home: Path) -> None:
    """Write one request."""
    shape = {
        "client": client.name,
        "version": client.version,
        "call": client.call,
        "tool": client.tool,
        "path": exchange.path,
        "headers": {
            name: value.replace(str(home), "/home/me")
            for name, value in exchange.headers.items()
            if name not in _OF_THE_CONNECTION
        },
        "body": trimmed(exchange.json, home),
    }
    SHAPES.mkdir(exist_ok=True)
    text = json.dumps(shape, indent=1, ensure_ascii=False)
    (SHAPES / f"{client.slug}--{step}.json").write_text(text + "\n", encoding="utf-8")


def _kept(key: str, value: Any, home: Path) -> Any:
    is_prose = key == "description" and isinstance(value, str)
    return CUT if is_prose else trimmed(value, home)


def trimmed(value: Any, home: Path) -> Any:
    """The same with long texts cut; those with the tool's result stay."""
    if isinstance(value, dict):
        return {key: _kept(key, item, home) for key, item in value.items()}
    if isinstance(value, list):
        return [trimmed(item, home) for item in value]
    if not isinstance(value, str):
        return value
    text = value.replace(str(home), "/home/me")
    return text if len(text) <= LONGEST or RESULT in text else CUT
