"""Wire structs of Anthropic's Messages requests, and what we do with each of their fields.

Explicit null is the same as absent. Fields not named here are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from luce.listener.dialects.formats_wire import TextFormat
from luce.listener.dialects.openai_wire import SamplingFields
from luce.listener.dialects.ranges import ItemList
from luce.listener.dialects.unserved import LOGPROBS_ELSEWHERE, UNSERVED_ANYWHERE, formats_but


class Block(msgspec.Struct):
    """One content block of any type; what its type needs is checked later.

    Attributes:
        text: of `text`.
        thinking: of `thinking`.
        id, name, input: of `tool_use`.
        tool_use_id, content: of `tool_result`.
        tool_name: of `tool_reference`.
        tool: of `tool_addition` and `tool_removal`.
    """

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | ItemList[Block] | None = None
    tool_name: str | None = None
    tool: ChangedTool | None = None


Content = str | ItemList[Block]


class Message(msgspec.Struct):
    """One turn; its role is checked later."""

    role: str
    content: Content


class Tool(msgspec.Struct):
    """A tool; one without a schema runs at its maker's and has a type of its own.

    Attributes:
        strict: inputs are held to the schema.
        defer_loading: the model is not told of it until a message refers to it.
    """

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ChangedTool(msgspec.Struct):
    """What is added or removed in the middle of a conversation.

    Attributes:
        name: of `tool_reference`.
        definition: of `tool_definition`.
    """

    type: str
    name: str | None = None
    definition: Tool | None = None


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
    format: TextFormat | None = None


class Metadata(msgspec.Struct):
    """Notes of the client's."""

    user_id: str | None = None


class MessagesRequest(SamplingFields, kw_only=True):
    """Body of `POST /v1/messages`, and of a count of its tokens.

    Attributes:
        output_format: what `output_config.format` was called at first.
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
    output_format: TextFormat | None = None
    logprobs: Any = None
    top_logprobs: Any = None
    mcp_servers: Any = None
    container: Any = None
    compaction: Any = None
    thread: Any = None
    betas: list[str] | None = None
    billing_policy: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None
    inference_geo: str | None = None
    speed: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None


UNSERVED: dict[str, Callable[[MessagesRequest], bool]] = {
    "mcp_servers": lambda request: not request.mcp_servers,
    "container": lambda request: not request.container,
    "compaction": lambda request: not request.compaction,
    "thread": lambda request: not request.thread,
    **LOGPROBS_ELSEWHERE,
    **UNSERVED_ANYWHERE,
    **formats_but("output_config", "output_format"),
}
"""Fields that are refused unless null or, by this test, asking for nothing that is not served."""

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
"""Known fields that change nothing here; those of one type are checked for it."""

SERVED = frozenset(MessagesRequest.__struct_fields__) - frozenset(UNSERVED) - NO_EFFECT
"""Fields that do what they say."""
