"""Forms of a conversation, for templates that refuse it as the client sent it.

Many templates demand that user and assistant turns alternate, or know no system turn, or expect
a text where the API allows null. The client's own form is always tried first; these are what is
tried when the template refuses it, each gentler form before the next:

1. neighbours of one role joined with an empty line between, null content as empty text;
2. the same with one call a turn, each followed by its result;
3. the same with system turns made part of the user turn that follows (or, at the end, a user
   turn of their own).

Turns with further keys (tool calls, names) and tool results are never joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Message = dict[str, Any]

_JOINED_ROLES = frozenset({"system", "developer", "user", "assistant"})
_SYSTEM_ROLES = frozenset({"system", "developer"})
_PLAIN_KEYS = frozenset({"role", "content"})


def fallback_forms(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """The forms to try after the plain one; those equal to one tried before are left out."""
    tried = [list(messages)]
    merged = _joined(_with_text(message) for message in messages)
    single = list(_one_call_a_turn(merged))
    for form in (merged, single, _joined(_as_user(message) for message in single)):
        if form not in tried:
            tried.append(form)
            yield form


def _with_text(message: Message) -> Message:
    return message if message["content"] is not None else {**message, "content": ""}


def _as_user(message: Message) -> Message:
    return {**message, "role": "user"} if message["role"] in _SYSTEM_ROLES else message


def _one_call_a_turn(messages: Sequence[Message]) -> Iterator[Message]:
    """Calls and results in turns of their own: call, result, call, result.

    Results belong to calls by id, or else by their order.
    """
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        results: list[Message] = []
        while position < len(messages) and messages[position]["role"] == "tool":
            results.append(messages[position])
            position += 1
        for index, call in enumerate(calls):
            content = message["content"] if index == 0 else ""
            yield {**message, "content": content, "tool_calls": [call]}
            is_last = index == len(calls) - 1
            answers = results if is_last else _results_of(call, results)
            yield from answers
            results = [result for result in results if result not in answers]


def _results_of(call: Any, results: list[Message]) -> list[Message]:
    call_id = call.get("id") if isinstance(call, dict) else None
    named = [result for result in results if result.get("tool_call_id") == call_id]
    return named if call_id is not None and named else results[:1]


def _joined(messages: Iterator[Message]) -> list[Message]:
    turns: list[Message] = []
    for message in messages:
        if turns and _can_join(turns[-1], message):
            text = f"{turns[-1]['content']}\n\n{message['content']}"
            turns[-1] = {**turns[-1], "content": text}
        else:
            turns.append(message)
    return turns


def _can_join(first: Message, second: Message) -> bool:
    return (
        first["role"] == second["role"]
        and first["role"] in _JOINED_ROLES
        and first.keys() == second.keys() == _PLAIN_KEYS
    )
