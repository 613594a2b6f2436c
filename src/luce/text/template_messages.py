"""A request's messages in the shape that transformers' chat templates expect.

- Arguments of calls are objects, also where the client sent JSON in a string; what is no object
  goes under `_raw`. An empty list of calls is no list.
- Reasoning of earlier turns is `reasoning_content`, whatever the client called it.
- An assistant turn without content has an empty one, as templates write null out as "None".
- A tool's result has the name of the tool it answers.
- For a template that knows no calls, calls and results become text (`tool_prompt`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from luce.text.call import ChatMessage, ToolSpec
from luce.text.channels import ChannelSpec
from luce.text.message_forms import Message
from luce.text.template_traits import TemplateTraits
from luce.text.tool_prompt import calls_as_text, result_as_text
from luce.text.tools.json_stream import strict_json

_SHORT_ID_CHARS = 9
_NO_ID_CHARACTER = re.compile(r"[^A-Za-z0-9]")


def tool_dicts(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Tools as the template variable `tools`, those left out that messages tell of."""
    return [tool_dict(tool) for tool in tools if not tool.is_deferred]


def tool_dict(tool: ToolSpec) -> dict[str, Any]:
    """One tool as chat templates expect it."""
    return {"type": "function", "function": _function(tool)}


def message_dicts(
    messages: Iterable[ChatMessage], traits: TemplateTraits, guarded: ChannelSpec | None = None
) -> list[Message]:
    """The messages as dicts.

    Args:
        guarded: tags of reasoning that the template would not find in a message's content,
            because the guard breaks control tokens there; they are taken out here.
    """
    shaper = _Shaper(traits, guarded)
    return [shaper.shape(message) for message in messages]


class _Shaper:
    """Shapes the turns of one conversation, in order."""

    def __init__(self, traits: TemplateTraits, guarded: ChannelSpec | None) -> None:
        self._traits = traits
        self._guarded = guarded
        self._names: dict[str, str] = {}

    def shape(self, message: ChatMessage) -> Message:
        extra = dict(message.extra)
        if message.role == "assistant":
            return self._assistant(message.content or "", extra)
        if message.role == "tool":
            return self._result(message.content or "", extra)
        return {"role": message.role, "content": message.content, **extra}

    def _assistant(self, content: str, extra: dict[str, Any]) -> Message:
        reasoning = extra.pop("reasoning", None)
        if extra.get("reasoning_content") is None:
            extra.pop("reasoning_content", None)
            if isinstance(reasoning, str):
                extra["reasoning_content"] = reasoning
        calls = [self._call(call) for call in extra.pop("tool_calls", None) or ()]
        content = self._without_reasoning(content, extra)
        if calls and self._traits.has_calls:
            extra["tool_calls"] = calls
        elif calls:
            content = calls_as_text(content, calls)
        return {"role": "assistant", "content": content, **extra}

    def _without_reasoning(self, content: str, extra: dict[str, Any]) -> str:
        """What templates do themselves with tags that they find in the content."""
        tags = self._guarded
        if tags is None or tags.close not in content or tags.close not in self._traits.strings:
            return content
        before, _, behind = content.rpartition(tags.close)
        if self._traits.has_reasoning and "reasoning_content" not in extra:
            for tag in tags.opens:
                before = before.rpartition(tag)[2]
            extra["reasoning_content"] = before.strip("\n")
        return behind.lstrip("\n")

    def _result(self, content: str, extra: dict[str, Any]) -> Message:
        if not self._traits.has_calls:
            return {"role": "user", "content": result_as_text(content)}
        call_id = extra.get("tool_call_id")
        if isinstance(call_id, str):
            if extra.get("name") is None and call_id in self._names:
                extra["name"] = self._names[call_id]
            extra["tool_call_id"] = self._id(call_id)
        return {"role": "tool", "content": content, **extra}

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        shaped: dict[str, Any] = {
            "type": "function",
            "function": {"name": function["name"], "arguments": _arguments(function)},
        }
        call_id = call.get("id")
        if isinstance(call_id, str):
            self._names[call_id] = function["name"]
            shaped["id"] = self._id(call_id)
        return shaped

    def _id(self, call_id: str) -> str:
        if not self._traits.has_short_ids:
            return call_id
        # The end of our own ids is random; shorter ids of others are filled up.
        return _NO_ID_CHARACTER.sub("", call_id)[-_SHORT_ID_CHARS:].rjust(_SHORT_ID_CHARS, "0")


def _function(tool: ToolSpec) -> dict[str, Any]:
    description = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **description, "parameters": tool.parameters}


def _arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    given = function.get("arguments")
    if isinstance(given, dict):
        return given
    if given is None or (isinstance(given, str) and not given.strip()):
        return {}
    strict = strict_json(given) if isinstance(given, str) else None
    parsed = json.loads(strict) if strict is not None else given
    return parsed if isinstance(parsed, dict) else {"_raw": given}
