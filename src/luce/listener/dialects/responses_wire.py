"""Wire structs of OpenAI's Responses requests, and what we do with each of their fields.

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


class Part(msgspec.Struct, omit_defaults=True):
    """One part of an item's text; which types are served is checked later."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, omit_defaults=True):
    """One item of any type; what its type needs is checked later.

    Attributes:
        type: a message may leave it out.
        role: of a message; checked later.
        content: of a message or a reasoning.
        call_id, name: of calls and their outputs.
        namespace: of calls of tools that are in one.
        arguments: of a function's call.
        input: of a custom tool's call.
        output: of a call's output.
        summary, encrypted_content: of a reasoning.
    """

    type: str | None = None
    id: str | None = None
    role: str | None = None
    content: str | ItemList[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | dict[str, Any] | None = None
    input: str | None = None
    output: str | ItemList[Part] | None = None
    summary: ItemList[Part] | None = None
    encrypted_content: str | None = None


class ToolFormat(msgspec.Struct, omit_defaults=True):
    """What the input of a custom tool must look like."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class Tool(msgspec.Struct, omit_defaults=True):
    """A tool; functions and custom tools run at the client's, all others at their maker's.

    Attributes:
        tools: of a namespace, which is a group of the client's tools.
    """

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: ToolFormat | None = None
    tools: ItemList[Tool] | None = None


class ToolName(msgspec.Struct, omit_defaults=True):
    """Names a tool, or a namespace with all its tools."""

    type: str
    name: str | None = None
    namespace: str | None = None


class ChosenTool(ToolName, omit_defaults=True):
    """The tool that must be called, or those that may be.

    Attributes:
        mode, tools: of `allowed_tools`; with the mode required one of them must be called.
    """

    mode: Literal["auto", "required"] | None = None
    tools: ItemList[ToolName] | None = None


ToolChoice = Literal["auto", "none", "required"] | ChosenTool


class Reasoning(msgspec.Struct, omit_defaults=True):
    """How to think, and whether the client wants to read of it as a summary."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextConfig(msgspec.Struct, omit_defaults=True):
    """The answer's text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(SamplingFields, kw_only=True):
    """Body of `POST /v1/responses`.

    Attributes:
        top_logprobs: only means something beside the `include` of logprobs.
        reasoning_effort, thinking, chat_template_kwargs: as in our other APIs.
    """

    input: str | ItemList[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: ItemList[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    include: ItemList[str] | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    logprobs: Any = None
    truncation: Literal["auto", "disabled"] | None = None
    reasoning_effort: str | None = None
    thinking: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    background: Any = None
    background_options: Any = None
    conversation: Any = None
    image: Any = None
    moderation: Any = None
    prompt: Any = None


NO_EFFECT = frozenset(
    {
        "access_programs",
        "context_management",
        "max_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "truncation",
        "user",
    }
)
"""Known fields that change nothing here whatever they say, so they are accepted.

`max_tool_calls` counts calls of tools that run at OpenAI's. A prompt that is too long is refused
whatever `truncation` says.
"""


LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"

UNSERVED: dict[str, Callable[[ResponsesRequest], bool]] = {
    "background": lambda request: request.background is False,
    "background_options": lambda request: not request.background_options,
    "conversation": lambda _request: False,
    "image": lambda _request: False,
    "moderation": lambda _request: False,
    "prompt": lambda _request: False,
    "logprobs": LOGPROBS_ELSEWHERE["logprobs"],
    **UNSERVED_ANYWHERE,
    **formats_but("text"),
}
"""Fields that are refused unless null or, by this test, asking for nothing that is not served."""

SERVED = frozenset(ResponsesRequest.__struct_fields__) - frozenset(UNSERVED) - NO_EFFECT
"""Fields that do what they say."""
