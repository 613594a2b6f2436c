"""Tools for models whose chat template knows none: told in the system turn, in Hermes' way.

The template renders the section, the calls and their results as ordinary text. Models that were
never taught tools follow it as far as they follow instructions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SECTION = """# Tools

You may call functions. These are their signatures:
<tools>
{signatures}
</tools>

To call a function, write a JSON object with its name and arguments between tool_call tags, once \
for each call:
<tool_call>
{{"name": "<function name>", "arguments": {{<arguments as a JSON object>}}}}
</tool_call>
The results will be given to you between tool_response tags."""


def with_tools_section(
    messages: Sequence[dict[str, Any]], tools: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The conversation with the tools told at the end of its first system turn."""
    signatures = "\n".join(_json(tool) for tool in tools)
    section = _SECTION.format(signatures=signatures)
    if messages and messages[0]["role"] in ("system", "developer"):
        first, *rest = messages
        return [{**first, "content": f"{first['content'] or ''}\n\n{section}".lstrip()}, *rest]
    return [{"role": "system", "content": section}, *messages]


def added_tools(tools: Iterable[Mapping[str, Any]]) -> str:
    """What a message tells of tools that were not there at the beginning."""
    signatures = "\n".join(_json(tool) for tool in tools)
    return f"These functions can be called from now on:\n<tools>\n{signatures}\n</tools>"


def removed_tools(names: Iterable[str]) -> str:
    """What a message tells of tools that are gone."""
    return f"These functions can no longer be called: {', '.join(names)}"


def calls_as_text(content: str, calls: Iterable[Mapping[str, Any]]) -> str:
    """An assistant turn's text with its calls written out behind it."""
    blocks = (f"<tool_call>\n{_json(call['function'])}\n</tool_call>" for call in calls)
    return "\n".join([content, *blocks] if content else blocks)


def result_as_text(content: str) -> str:
    """A tool's result as a user turn's text."""
    return f"<tool_response>\n{content}\n</tool_response>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
