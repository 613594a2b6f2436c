"""Tools told in the system turn."""

from __future__ import annotations

from typing import Any

from luce.text.tool_prompt import (
    added_tools,
    calls_as_text,
    removed_tools,
    result_as_text,
    with_tools_section,
)

TOOL = {"type": "function", "function": {"name": "f", "description": "é{}", "parameters": {}}}
USER = {"role": "user", "content": "U"}


def test_a_system_turn_of_its_own() -> None:
    first, second = with_tools_section([USER], [TOOL, TOOL])
    assert first["role"] == "system"
    assert first["content"].startswith("# Tools")
    line = '{"type": "function", "function": {"name": "f", "description": "é{}", "parameters": {}}}'
    assert f"<tools>\n{line}\n{line}\n</tools>" in first["content"]
    assert '{"name": "<function name>", "arguments": {' in first["content"]
    assert second == USER


def test_at_the_end_of_the_system_turn() -> None:
    for role in ("system", "developer"):
        turns: list[dict[str, Any]] = [{"role": role, "content": "S", "name": "n"}, USER]
        first, _ = with_tools_section(turns, [TOOL])
        assert first["content"].startswith("S\n\n# Tools")
        assert (first["role"], first["name"]) == (role, "n")
        assert turns[0]["content"] == "S"
    empty, _ = with_tools_section([{"role": "system", "content": None}, USER], [TOOL])
    assert empty["content"].startswith("# Tools")


def test_calls_and_results() -> None:
    call = {"function": {"name": "f", "arguments": {"a": "é"}}}
    block = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
    assert calls_as_text("", [call]) == block
    assert calls_as_text("So", [call, call]) == f"So\n{block}\n{block}"
    assert result_as_text("r") == "<tool_response>\nr\n</tool_response>"


def test_tools_that_come_and_go() -> None:
    told = added_tools([TOOL, TOOL])
    line = '{"type": "function", "function": {"name": "f", "description": "é{}", "parameters": {}}}'
    assert told.endswith(f"\n<tools>\n{line}\n{line}\n</tools>")
    assert removed_tools(["f", "g"]).endswith(": f, g")
