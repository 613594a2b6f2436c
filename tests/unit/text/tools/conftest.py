"""Parses a text as one answer and writes what was found in a short form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from luce.text.call import ToolSpec
from luce.text.channels import Channel, TextPiece
from luce.text.events import ToolCallDelta, ToolCallStarted
from luce.text.tools.declared import DeclaredTools
from luce.text.tools.hermes import HERMES
from luce.text.tools.parser import ToolParser
from luce.text.tools.registry import active_syntaxes
from luce.text.tools.syntax import ToolSyntax

ADD = ToolSpec(
    "add",
    parameters={
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "s": {"type": "string"},
            "l": {"type": "array"},
            "o": {"type": "object"},
        },
        "required": ["a"],
    },
)

Found = list[Any]
"""Texts; for a call its name and its arguments, parsed if the call is complete."""


@pytest.fixture
def parse() -> Callable[..., Found]:
    return parse_answer


def parse_answer(
    text: str,
    own: ToolSyntax = HERMES,
    *,
    channel: Channel = "content",
    tools: tuple[ToolSpec, ...] = (ADD, ToolSpec("get")),
    is_cut: bool = False,
    is_single: bool = False,
) -> Found:
    ids = map("id{}".format, itertools.count())
    parser = ToolParser(
        active_syntaxes(own),
        DeclaredTools(tools),
        is_single=is_single,
        new_id=lambda: next(ids),
    )
    pieces = [*parser.feed(TextPiece(channel, text)), *parser.finish(is_cut=is_cut)]
    found: Found = []
    for piece in pieces:
        if isinstance(piece, TextPiece):
            is_text = bool(found) and isinstance(found[-1], str)
            found[-1:] = [found[-1] + piece.text] if is_text else [*found[-1:], piece.text]
        elif isinstance(piece, ToolCallStarted):
            assert piece.call_id == f"id{piece.index}"
            found.append((piece.name, ""))
        elif isinstance(piece, ToolCallDelta):
            found[-1] = (found[-1][0], found[-1][1] + piece.arguments)
        else:
            found[-1] = (found[-1][0], json.loads(found[-1][1]))
    return found
