"""Wire structs of Anthropic's Messages requests, and what we do with each of their fields.

Explicit null is the same as absent. Fields not named here are ignored.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from luce.listener.dialects.openai_wire import SamplingFields
from luce.listener.dialects.ranges import ItemList


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
    content: str | ItemList[Block] | None = None


Content = str | ItemList[Block]


class Message(msgspec.Struct):
    """One turn."""

    role: Literal["user", "assistant", "system"]
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


class OutputConfig(msgspec.Struct):
    """How to answer.

    Attributes:
        effort: how much to think, where thinking is on.
        format: what the answer must look like.
    """

    effort: str | None = None
    format: Any = None


class Metadata(msgspec.Struct):
    """Notes of the client's."""

    user_id: str | None = None


class MessagesRequest(SamplingFields, kw_only=True):
    """Body of `POST /v1/messages`, and of a count of its tokens.

    Attributes:
        reasoning, reasoning_effort, chat_template_kwargs: as in our other APIs.
    """

    messages: ItemList[Message]
    system: Content | None = None
    tools: ItemList[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    reasoning: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mcp_servers: Any = None
    output_format: Any = None
    container: Any = None
    compaction: Any = None
    thread: Any = None


UNSERVED = ("mcp_servers", "output_format", "container", "compaction", "thread")
"""Fields that would change the answer and are not served: refused unless empty."""

NO_EFFECT = frozenset(
    {
        "betas",
        "billing_policy",
        "cache_control",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Known fields that change nothing here whatever they say, so they are accepted."""

SERVED = frozenset(MessagesRequest.__struct_fields__) - frozenset(UNSERVED) - NO_EFFECT
"""Fields that do what they say."""
