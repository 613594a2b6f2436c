"""Every field of every API's requests, with a value of it and what then must be true.

A row of a served field is tried over HTTP by `test_dialect_fields`; so is a row of a field that
has no effect, or that is refused. The tables are held against the wire structs there, so that a
field cannot be added without a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from luce.protocol.sampling import SamplingParams
from luce.text.call import (
    AnswerFormat,
    GenerationCall,
    JsonFormat,
    LarkFormat,
    NamedTool,
    RegexFormat,
)


@dataclass(frozen=True)
class Seen:
    """What a request led to.

    Attributes:
        call: what the text side was asked.
        sampling: what the worker was asked.
        text: the answer's body.
    """

    call: GenerationCall
    sampling: SamplingParams
    text: str


Check = Callable[[Seen], bool]


@dataclass(frozen=True)
class Row:
    """A value of a field.

    Attributes:
        value: the field's.
        check: what is true then.
        beside: other fields it needs.
    """

    value: Any
    check: Check
    beside: dict[str, Any]


def row(value: Any, check: Check, **beside: Any) -> Row:
    return Row(value, check, beside)


def reasons(seen: Seen) -> Any:
    assert seen.call.reasoning is not None
    return seen.call.reasoning


def has_strict_tool(seen: Seen) -> bool:
    return any(tool.is_strict for tool in seen.call.tools)


def answers_in(form: AnswerFormat) -> Check:
    """The text side was asked for this form, and the worker is held to it."""
    return lambda seen: seen.call.answer_format == form and seen.sampling.grammar is not None


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FLAT = {"type": "json_schema", "name": "n", "schema": SCHEMA}
NESTED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
USER = {"role": "user", "content": "x"}
DEEP = {"enable_thinking": True}

SAMPLING: dict[str, Row] = {
    "model": row("big", lambda s: s.call.model == "big"),
    "stream": row(True, lambda s: "data: {" in s.text),
    "temperature": row(0.5, lambda s: s.sampling.temperature == 0.5),
    "top_p": row(0.5, lambda s: s.sampling.top_p == 0.5),
    "top_k": row(7, lambda s: s.sampling.top_k == 7),
    "min_p": row(0.25, lambda s: s.sampling.min_p == 0.25),
    "presence_penalty": row(1.5, lambda s: s.sampling.presence_penalty == 1.5),
    "frequency_penalty": row(-1.5, lambda s: s.sampling.frequency_penalty == -1.5),
    "repetition_penalty": row(1.25, lambda s: s.sampling.repetition_penalty == 1.25),
    "rep_pen": row(1.25, lambda s: s.sampling.repetition_penalty == 1.25),
    "rep_window": row(9, lambda s: s.sampling.rep_window == 9),
    "seed": row(0, lambda s: s.sampling.seed == 0),
    "stop": row("bc", lambda s: s.call.stop == ("bc",)),
    "stop_sequences": row(["bc"], lambda s: s.call.stop == ("bc",)),
    "logit_bias": row({"5": -2}, lambda s: s.sampling.logit_bias == {5: -2.0}),
    "ignore_eos": row(True, lambda s: s.sampling.stop_token_ids == ()),
    "min_tokens": row(2, lambda s: s.sampling.min_tokens == 2),
    "max_tokens": row(3, lambda s: s.sampling.max_tokens == 3),
    "grammar": row("start: /a/", answers_in(LarkFormat("start: /a/"))),
    "regex": row("a+", answers_in(RegexFormat("a+"))),
}
"""Of all APIs."""

OTHER_CAPS: dict[str, Row] = {
    "max_output_tokens": row(3, lambda s: s.sampling.max_tokens == 3),
    "max_completion_tokens": row(3, lambda s: s.sampling.max_tokens == 3),
}
USAGE = row(
    {"include_usage": True},
    lambda s: s.text.count('"usage"') == 1,
    stream=True,
)
N = row(2, lambda s: '"index":1' in s.text)

THINKING: dict[str, Row] = {
    "reasoning_effort": row("low", lambda s: reasons(s).effort == "low"),
    "thinking": row(
        {"type": "enabled", "budget_tokens": 1024}, lambda s: reasons(s).budget_tokens == 1024
    ),
    "chat_template_kwargs": row(DEEP, lambda s: s.call.template_kwargs == DEEP),
}

CHAT_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": SCHEMA, "strict": True},
}
CHAT: dict[str, Row] = {
    **SAMPLING,
    **OTHER_CAPS,
    **THINKING,
    "n": N,
    "stream_options": USAGE,
    "messages": row([USER, USER], lambda s: len(s.call.messages) == 2),
    "reasoning": row({"effort": "high"}, lambda s: reasons(s).effort == "high"),
    "tools": row([CHAT_TOOL], has_strict_tool),
    "tool_choice": row(
        {"type": "function", "function": {"name": "f"}},
        lambda s: s.call.tool_choice == NamedTool("f"),
        tools=[CHAT_TOOL],
    ),
    "parallel_tool_calls": row(False, lambda s: not s.call.parallel_tool_calls),
    "response_format": row(NESTED, answers_in(JsonFormat(SCHEMA))),
    "logprobs": row(True, lambda s: '"bytes":[97]' in s.text),
    "top_logprobs": row(2, lambda s: s.sampling.logprobs == 2, logprobs=True),
}

COMPLETIONS: dict[str, Row] = {
    **SAMPLING,
    **OTHER_CAPS,
    "n": N,
    "stream_options": USAGE,
    "prompt": row([72, 73], lambda s: s.call.raw_prompts == ((72, 73),)),
    "response_format": row(NESTED, answers_in(JsonFormat(SCHEMA))),
    "logprobs": row(2, lambda s: s.sampling.logprobs == 2 and '"text_offset":[0' in s.text),
}

RESPONSES_TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
RESPONSES: dict[str, Row] = {
    **SAMPLING,
    **OTHER_CAPS,
    **THINKING,
    "n": row(1, lambda s: s.call.num_choices == 1),
    "stream_options": row({"include_obfuscation": False}, lambda s: True, stream=True),
    "input": row([USER, USER], lambda s: len(s.call.messages) == 2),
    "instructions": row("be brief", lambda s: s.call.messages[0].content == "be brief"),
    "tools": row([RESPONSES_TOOL], has_strict_tool),
    "tool_choice": row(
        {"type": "function", "name": "f"},
        lambda s: s.call.tool_choice == NamedTool("f"),
        tools=[RESPONSES_TOOL],
    ),
    "parallel_tool_calls": row(False, lambda s: not s.call.parallel_tool_calls),
    "reasoning": row({"effort": "high"}, lambda s: reasons(s).effort == "high"),
    "text": row({"format": FLAT}, answers_in(JsonFormat(SCHEMA))),
    "include": row(["message.output_text.logprobs"], lambda s: '"bytes":[97]' in s.text),
    "top_logprobs": row(
        2,
        lambda s: s.sampling.logprobs == 2,
        include=["message.output_text.logprobs"],
    ),
    "store": row(False, lambda s: '"store":false' in s.text),
    "metadata": row({"a": "b"}, lambda s: '"metadata":{"a":"b"}' in s.text),
    "previous_response_id": row(
        "resp_unheard_of", lambda s: '"previous_response_id":null' in s.text
    ),
}

MESSAGES_TOOL = {"name": "f", "input_schema": SCHEMA, "strict": True}
MESSAGES: dict[str, Row] = {
    **SAMPLING,
    **OTHER_CAPS,
    **THINKING,
    "n": row(1, lambda s: s.call.num_choices == 1),
    "stream_options": row({"include_usage": True}, lambda s: True),
    "messages": row([USER, USER], lambda s: len(s.call.messages) == 2),
    "system": row("be brief", lambda s: s.call.messages[0].content == "be brief"),
    "tools": row([MESSAGES_TOOL], has_strict_tool),
    "tool_choice": row(
        {"type": "any", "disable_parallel_tool_use": True},
        lambda s: s.call.tool_choice == "required" and not s.call.parallel_tool_calls,
        tools=[MESSAGES_TOOL],
    ),
    "output_config": row({"format": FLAT}, answers_in(JsonFormat(SCHEMA))),
    "output_format": row(FLAT, answers_in(JsonFormat(SCHEMA))),
    "reasoning": row({"effort": "high"}, lambda s: reasons(s).effort == "high"),
}

# --- fields that change nothing ----------------------------------------------------------

OPENAI_NO_EFFECT: dict[str, Any] = {
    "metadata": {"a": "b"},
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "u",
    "service_tier": "auto",
    "store": True,
    "user": "u",
}
CHAT_NO_EFFECT: dict[str, Any] = {
    **OPENAI_NO_EFFECT,
    # Means something beside `functions` only, which are refused.
}
RESPONSES_NO_EFFECT: dict[str, Any] = {
    **OPENAI_NO_EFFECT,
    "access_programs": {"cyber": "standard"},
    "context_management": [{"type": "compaction"}],
    "max_tool_calls": 3,
    "truncation": "auto",
    "client_metadata": {"a": "b"},
}
MESSAGES_NO_EFFECT: dict[str, Any] = {
    "betas": ["effort-2025-11-24"],
    "billing_policy": {"type": "billing_policy"},
    "cache_control": {"type": "ephemeral"},
    "context_management": {"edits": []},
    "diagnostics": {"previous_message_id": None},
    "fallback_credit_token": "t",
    "fallbacks": "default",
    "inference_geo": "us",
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "speed": "fast",
    "user_profile_id": "u",
    "workspace_id": "w",
}
UNKNOWN: dict[str, Any] = {"session_id": "s", "unheard_of": {"x": 1}}
"""No field of any API: left alone."""

# --- fields that are refused -------------------------------------------------------------

REFUSED_ANYWHERE: dict[str, Any] = {
    "guided_json": {"type": "object"},
    "guided_regex": "a",
    "guided_choice": ["a"],
    "guided_grammar": "root ::= a",
    "structured_outputs": {"regex": "a"},
    "ebnf": "root ::= a",
    "prefix_cache": {"scope": "off"},
}
REFUSED_FORMATS: dict[str, Any] = {
    "response_format": {"type": "json_object"},
    "text": {"format": FLAT},
    "output_config": {"format": FLAT},
    "output_format": FLAT,
}


def formats_but(*served: str) -> dict[str, Any]:
    return {name: value for name, value in REFUSED_FORMATS.items() if name not in served}


CHAT_REFUSED: dict[str, Any] = {
    **REFUSED_ANYWHERE,
    **formats_but("response_format"),
    "function_call": {"name": "f"},
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "x"},
    "prediction": {"type": "content", "content": "x"},
    "moderation": {"mode": "score"},
    "verbosity": "low",
    "web_search_options": {},
}
COMPLETIONS_REFUSED: dict[str, Any] = {
    **REFUSED_ANYWHERE,
    **formats_but("response_format"),
    "best_of": 3,
    "echo": True,
    "suffix": "end",
    "messages": [{"role": "user", "content": "x"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "top_logprobs": 3,
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "chat_template_kwargs": {"enable_thinking": True},
}
RESPONSES_REFUSED: dict[str, Any] = {
    **REFUSED_ANYWHERE,
    **formats_but("text"),
    "logprobs": True,
    "background": True,
    "background_options": {"completion_window": "2h"},
    "conversation": "c",
    "image": {},
    "moderation": {},
    "prompt": {"id": "x"},
}
MESSAGES_REFUSED: dict[str, Any] = {
    **REFUSED_ANYWHERE,
    **formats_but("output_config", "output_format"),
    "logprobs": True,
    "top_logprobs": 3,
    "mcp_servers": [{}],
    "container": "c",
    "compaction": {"type": "x"},
    "thread": {"type": "x"},
}
