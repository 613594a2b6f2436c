"""A generation request in our own words, whatever dialect it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from luce.protocol.sampling import HiddenRead
from luce.text.reasoning import ReasoningRequest


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn, in the shape chat templates expect.

    `content` is None beside tool calls. `extra` holds further template-visible keys
    (`name`, `tool_calls`, `tool_call_id`, ...), already plain JSON values.
    """

    role: str
    content: str | None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SamplingOverrides:
    """What the client asked for; None = the model's default applies."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    rep_window: int | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    """How many likeliest tokens (0 to 20) to report with each token; None: no report."""


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """The content is JSON.

    Attributes:
        schema: what it must validate against; None: any JSON object.
    """

    schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RegexFormat:
    """The content matches a regular expression from end to end."""

    pattern: str


@dataclass(frozen=True, slots=True)
class LarkFormat:
    """The content follows a grammar in llguidance's form of Lark."""

    source: str


AnswerFormat = JsonFormat | RegexFormat | LarkFormat


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool the model may call.

    Attributes:
        parameters: JSON schema of the arguments, an object's.
        is_strict: arguments are held to the schema while they are sampled.
        input_grammar: what its one argument, a text, follows besides; only of a strict tool whose
            schema has that one property.
        is_deferred: a message tells of it; it is left out where the prompt lists tools.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    is_strict: bool = False
    is_deferred: bool = False
    input_grammar: LarkFormat | None = None


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The tool choice that leaves one tool."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


RawPrompt = str | tuple[int, ...]
"""Text that may hold the texts of control tokens, or token ids; no template is applied."""


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """One request, decoded and validated, not yet rendered for any model.

    Attributes:
        model: the name asked for, or None.
        messages: at least one, or none beside raw prompts.
        sampling: the client's overrides.
        max_tokens: None = the model's default; else > 0. Larger than the room is clamped.
        stop: stop strings, none of them empty.
        stream: whether events are sent as they come.
        include_usage: whether a stream ends with a usage frame.
        template_kwargs: extra variables for the chat template.
        tools: what the model may call; names differ.
        tool_choice: "none": tools are not offered and no output is taken for a call. "required"
            and a named tool are enforced by a grammar; a named tool is the only one whose calls
            are taken.
        parallel_tool_calls: False ends the generation with its first call.
        reasoning: None: the answer is not split, reasoning comes as text as the model wrote it.
        raw_prompts: prompts to go on from as they are, each with answers of its own. A model's
            text side is only ever given calls with one or none.
        n: answers wanted to each prompt.
        answer_format: what the content must look like, reasoning left out; None: anything.
            Beside tools it binds an answer that is no call.
        client_names: JSON paths of ours that have another name in the client's request, and that
            name: `answer_format`, `tools[0].parameters`. Errors name ours in `param`, with what
            is wrong below it (`answer_format.properties.a.pattern`); the dialect puts the
            client's name in its place.
        hidden_read: the prompt is read instead of answered.
        ends_bare: the prompt ends right behind the assistant's header.
    """

    model: str | None
    messages: tuple[ChatMessage, ...]
    sampling: SamplingOverrides = SamplingOverrides()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning: ReasoningRequest | None = None
    raw_prompts: tuple[RawPrompt, ...] = ()
    n: int = 1
    answer_format: AnswerFormat | None = None
    client_names: Mapping[str, str] = field(default_factory=dict)
    hidden_read: HiddenRead | None = None
    ends_bare: bool = False

    @property
    def num_choices(self) -> int:
        """Answers to the whole request."""
        return self.n * max(1, len(self.raw_prompts))
