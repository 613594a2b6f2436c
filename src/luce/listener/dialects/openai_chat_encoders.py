"""Answers of OpenAI's chat completions: events in, chunks or one body out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from luce.errors import InternalError
from luce.listener.dialects import openai_wire as wire
from luce.listener.dialects.logprobs import ContentLogprobs, TokenLogprob, token_logprobs
from luce.listener.dialects.openai_answer import (
    DONE,
    AnswerHead,
    StreamEnd,
    TextFrame,
    UsageTotal,
    frame,
)
from luce.listener.dialects.openai_errors import error_body
from luce.text.call import GenerationCall
from luce.text.events import (
    ContentLogprob,
    Failed,
    Finished,
    GenEvent,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)


class ChatStreamEncoder:
    """Role, what the choice says, finish reason; then usage if asked for, and `[DONE]`.

    Clients join strings that come twice, so the role and the name and id of a call come once.
    """

    def __init__(self, call: GenerationCall, head: AnswerHead) -> None:
        self._head = head
        self._end = StreamEnd(call, head, "chat.completion.chunk")
        self._encoder = msgspec.json.Encoder()
        self._has_content: set[int] = set()
        self._text_frames: dict[int, TextFrame] = {}
        self._reports = call.sampling.logprobs is not None

    def encode(self, event: GenEvent, choice: int = 0) -> bytes:
        """Bytes of one event of one choice; see `StreamEncoder.encode`."""
        if isinstance(event, TextDelta):
            return self._content(event, choice)
        if isinstance(event, ReasoningDelta):
            text = event.text
            return self._chunk(choice, wire.Delta(reasoning_content=text, reasoning=text))
        if isinstance(event, ToolCallStarted | ToolCallDelta):
            self._has_content.add(choice)
            return self._chunk(choice, wire.Delta(tool_calls=[_call_delta(event)]))
        if isinstance(event, Started):
            self._head.model = event.model
            # With the list of log probabilities that the other chunks add to.
            return self._chunk(choice, wire.Delta(role="assistant"), logprobs=())
        if isinstance(event, Finished):
            return self._finish(choice, event)
        if isinstance(event, Failed):
            return frame(error_body(event.error)) + DONE
        assert_never(event)

    def _content(self, event: TextDelta, choice: int) -> bytes:
        text_frame = self._text_frames.get(choice)
        if text_frame is not None:
            return text_frame.around(event.text)
        self._has_content.add(choice)
        if self._reports:
            return self._chunk(choice, wire.Delta(content=event.text), logprobs=event.logprobs)
        empty = self._chunk(choice, wire.Delta(content=""))
        text_frame = self._text_frames[choice] = TextFrame(empty)
        return text_frame.around(event.text)

    def _finish(self, choice: int, event: Finished) -> bytes:
        frames = b""
        if choice not in self._has_content:
            # A whole answer's content is null only beside calls; clients should get the same.
            frames = self._chunk(choice, wire.Delta(content=""))
        last = wire.ChunkChoice(
            index=choice,
            delta=wire.Delta(),
            finish_reason=event.reason,
            finish_details=_finish_details(event),
        )
        return frames + self._frame(last) + self._end.finish(event.usage, choice)

    def _chunk(
        self, index: int, delta: wire.Delta, logprobs: tuple[ContentLogprob, ...] | None = None
    ) -> bytes:
        choice = wire.ChunkChoice(index=index, delta=delta)
        if self._reports and logprobs is not None:
            choice.logprobs = ContentLogprobs(token_logprobs(logprobs))
        return self._frame(choice)

    def _frame(self, choice: wire.ChunkChoice) -> bytes:
        chunk = wire.Chunk(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[choice],
        )
        return frame(self._encoder.encode(chunk))


@dataclass(slots=True)
class _Call:
    """A call as far as it is known."""

    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def wire(self) -> wire.AnswerCall:
        function = wire.CalledFunction(self.name, "".join(self.arguments))
        return wire.AnswerCall(id=self.call_id, function=function)


@dataclass(slots=True)
class _Choice:
    """One choice as far as it is known."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    finish_reason: str = ""
    finish_details: wire.FinishDetails | msgspec.UnsetType = msgspec.UNSET

    def message(self) -> wire.AnswerMessage:
        text: str | None = "".join(self.texts)
        message = wire.AnswerMessage(content=None if self.calls and not text else text)
        if self.reasoning:
            message.reasoning_content = message.reasoning = "".join(self.reasoning)
        if self.calls:
            message.tool_calls = [call.wire() for call in self.calls]
        return message


class ChatBodyEncoder:
    """Collects a generation, or one for each choice, into one `chat.completion`."""

    def __init__(self, call: GenerationCall, head: AnswerHead) -> None:
        self._head = head
        self._usage = UsageTotal(call)
        self._reports = call.sampling.logprobs is not None
        self._choices = [_Choice() for _ in range(call.num_choices)]

    def add(self, event: GenEvent, choice: int = 0) -> None:
        """Take the next event of one choice; see `BodyEncoder.add`."""
        into = self._choices[choice]
        if isinstance(event, TextDelta):
            into.texts.append(event.text)
            into.logprobs += token_logprobs(event.logprobs)
        elif isinstance(event, ReasoningDelta):
            into.reasoning.append(event.text)
        elif isinstance(event, ToolCallStarted):
            into.calls.append(_Call(event.call_id, event.name))
        elif isinstance(event, ToolCallDelta):
            into.calls[event.index].arguments.append(event.arguments)
        elif isinstance(event, Started):
            self._head.model = event.model
        elif isinstance(event, Finished):
            into.finish_reason = event.reason
            into.finish_details = _finish_details(event)
            self._usage.add(event.usage, choice)
        elif isinstance(event, Failed):
            raise event.error
        else:
            assert_never(event)

    def body(self) -> bytes:
        """The answer; see `BodyEncoder.body`."""
        if not self._usage.is_complete:
            raise InternalError("The generation ended without an end.")
        choices = [
            wire.AnswerChoice(
                index=index,
                message=choice.message(),
                logprobs=ContentLogprobs(choice.logprobs) if self._reports else None,
                finish_reason=choice.finish_reason,
                finish_details=choice.finish_details,
            )
            for index, choice in enumerate(self._choices)
        ]
        answer = wire.Answer(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            usage=self._usage.wire(),
        )
        return msgspec.json.encode(answer)


def _finish_details(event: Finished) -> wire.FinishDetails | msgspec.UnsetType:
    if event.close_kind is None:
        return msgspec.UNSET
    thinking, total = event.usage.reasoning_tokens, event.usage.completion_tokens
    return wire.FinishDetails(event.close_kind, thinking, total - thinking, total)


def _call_delta(event: ToolCallStarted | ToolCallDelta) -> wire.CallDelta:
    if isinstance(event, ToolCallDelta):
        function = wire.CalledFunction(arguments=event.arguments)
        return wire.CallDelta(index=event.index, function=function)
    return wire.CallDelta(
        index=event.index,
        id=event.call_id,
        type="function",
        function=wire.CalledFunction(event.name, ""),
    )
