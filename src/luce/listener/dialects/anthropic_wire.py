"""Wire structs of the part of Anthropic's Messages requests that becomes the prompt.

Explicit null is the same as absent. Fields not named here are ignored: they change no prompt.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Block(msgspec.Struct):
    """One content block of any type; what its type needs is checked later.

    Attributes:
        text: of `text`.
        thinking: of `thinking`.
        id, name, input: of `tool_use`.
        tool_use_id, content: of `tool_result`.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None


Content = str | list[Block]


class Message(msgspec.Struct):
    """One turn."""

    role: Literal["user", "assistant"]
    content: Content


class Tool(msgspec.Struct):
    """A tool; one without a schema runs at its maker's and has a type of its own."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None


class ToolChoice(msgspec.Struct):
    """Which tool should be called, if any."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class PromptRequest(msgspec.Struct):
    """What a Messages request and a count of its tokens have in common."""

    messages: list[Message]
    model: str | None = None
    system: Content | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None
    mcp_servers: Any = None
    output_config: Any = None
    output_format: Any = None


UNSERVED = ("mcp_servers", "output_config", "output_format")
"""Fields that would change the prompt and are not served: refused unless empty."""
