"""What answers of OpenAI's chat and legacy completions have in common: head, frames, usage."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from luce.listener.dialects import openai_wire as wire
from luce.text.call import GenerationCall
from luce.text.events import TokenUsage

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def wall_clock_s() -> int:
    """Unix time."""
    return int(datetime.now(tz=UTC).timestamp())


def new_id(prefix: str) -> str:
    """An id for one answer."""
    return f"{prefix}-{secrets.token_hex(12)}"


def frame(data: bytes) -> bytes:
    """One event of a stream."""
    return b"data: " + data + b"\n\n"


class TextFrame:
    """The event of a text, all of it but the text encoded once: a stream repeats it each token."""

    def __init__(self, of_empty: bytes) -> None:
        """Args:
        of_empty: the event of an empty text, in which no other empty text comes later.
        """
        self._before, _, self._after = of_empty.rpartition(b'""')

    def around(self, text: str) -> bytes:
        """The event of this text."""
        return self._before + _encode(text) + self._after


@dataclass(slots=True)
class AnswerHead:
    """What stands in every chunk of an answer.

    Attributes:
        model: who answers; known once the generation has started.
    """

    id: str
    created: int
    model: str = ""


class UsageTotal:
    """Usage of all choices of an answer; a prompt with several of them counts once."""

    def __init__(self, call: GenerationCall) -> None:
        self._per_prompt = call.n
        self._num_open = call.num_choices
        self._prompt = self._cached = self._completion = self._reasoning = 0

    @property
    def is_complete(self) -> bool:
        """All choices have finished."""
        return self._num_open == 0

    def add(self, usage: TokenUsage, choice: int) -> None:
        """A choice has finished."""
        self._num_open -= 1
        self._completion += usage.completion_tokens
        self._reasoning += usage.reasoning_tokens
        if choice % self._per_prompt == 0:
            self._prompt += usage.prompt_tokens
            self._cached += usage.cached_tokens

    def wire(self) -> wire.WireUsage:
        """As the client sees it."""
        return wire.WireUsage(
            self._prompt,
            self._completion,
            self._prompt + self._completion,
            wire.PromptDetails(self._cached),
            wire.CompletionDetails(self._reasoning),
        )


class StreamEnd:
    """The frames behind the last choice's finish reason: usage if asked for, `[DONE]`."""

    def __init__(self, call: GenerationCall, head: AnswerHead, kind: str) -> None:
        """Args:
        call: the request.
        head: of the answer.
        kind: `object` of its chunks.
        """
        self._include_usage = call.include_usage
        self._head = head
        self._kind = kind
        self._usage = UsageTotal(call)

    def finish(self, usage: TokenUsage, choice: int) -> bytes:
        """A choice has finished; empty unless it was the last one."""
        self._usage.add(usage, choice)
        if not self._usage.is_complete:
            return b""
        if not self._include_usage:
            return DONE
        chunk = wire.UsageChunk(
            id=self._head.id,
            object=self._kind,
            created=self._head.created,
            model=self._head.model,
            usage=self._usage.wire(),
        )
        return frame(msgspec.json.encode(chunk)) + DONE
