"""OpenAI's legacy completions: a raw prompt in, its continuation out.

No chat template is applied. The texts of control tokens in the prompt become those tokens, and a
text gets the model's begin token if it wants one and the prompt has none; token ids are taken as
they are.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from luce.errors import ApiError, InternalError, InvalidRequest
from luce.listener.dialects import openai_completions_wire as wire
from luce.listener.dialects.answer_formats import answer_format, response_format
from luce.listener.dialects.logprobs import MAX_TOP_LOGPROBS
from luce.listener.dialects.openai_answer import (
    DONE,
    AnswerHead,
    StreamEnd,
    TextFrame,
    UsageTotal,
    frame,
    new_id,
    wall_clock_s,
)
from luce.listener.dialects.openai_completions_logprobs import LogprobWriter, TextLogprobs
from luce.listener.dialects.openai_errors import error_body
from luce.listener.dialects.openai_fields import (
    first_given,
    includes_usage,
    output_cap,
    refuse_unserved,
    sampling_overrides,
    stop_strings,
)
from luce.listener.dialects.ranges import MAX_CHOICES, check_ranges
from luce.listener.dialects.wire_errors import decode_json
from luce.text.call import GenerationCall, RawPrompt
from luce.text.events import Failed, Finished, GenEvent, Started, TextDelta


class OpenAICompletions:
    """The dialect of `POST /v1/completions`."""

    def __init__(self, clock_s: Callable[[], int] = wall_clock_s) -> None:
        self._clock_s = clock_s
        self._decoder = msgspec.json.Decoder(wire.CompletionRequest)

    def decode(self, body: bytes) -> GenerationCall:
        """Read and check a request; see `Dialect.decode`."""
        request = decode_json(self._decoder, body)
        refuse_unserved(request, wire.UNSERVED)
        check_ranges(request)
        max_tokens = first_given(output_cap(request), wire.DEFAULT_MAX_TOKENS)
        wanted = answer_format(request, response_format(request.response_format))
        call = GenerationCall(
            model=request.model or None,
            messages=(),
            sampling=sampling_overrides(request, max_tokens, _logprobs(request.logprobs)),
            max_tokens=max_tokens,
            stop=stop_strings(request),
            stream=bool(request.stream),
            include_usage=includes_usage(request),
            raw_prompts=_raw_prompts(request.prompt),
            n=request.n or 1,
            answer_format=wanted.format,
            client_names=wanted.names,
        )
        if call.num_choices > MAX_CHOICES:
            raise InvalidRequest(
                f"prompt: {len(call.raw_prompts)} prompts with n={call.n} are "
                f"{call.num_choices} choices; at most {MAX_CHOICES} are served at once.",
                param="prompt",
            )
        return call

    def stream_encoder(self, call: GenerationCall) -> TextStreamEncoder:
        """An encoder for one streamed answer."""
        return TextStreamEncoder(call, self._head())

    def body_encoder(self, call: GenerationCall) -> TextBodyEncoder:
        """An encoder for one whole answer."""
        return TextBodyEncoder(call, self._head())

    def error_body(self, error: ApiError) -> bytes:
        """OpenAI's error envelope."""
        return error_body(error)

    def _head(self) -> AnswerHead:
        return AnswerHead(new_id("cmpl"), self._clock_s())


class TextStreamEncoder:
    """Text as it comes, a finish reason for each choice, usage if asked for, `[DONE]`."""

    def __init__(self, call: GenerationCall, head: AnswerHead) -> None:
        self._head = head
        self._end = StreamEnd(call, head, "text_completion")
        self._text_frames: dict[int, TextFrame] = {}
        self._writers = _writers(call)

    def encode(self, event: GenEvent, choice: int = 0) -> bytes:
        """Bytes of one event of one choice; see `StreamEncoder.encode`."""
        if isinstance(event, TextDelta):
            return self._text(event, choice)
        if isinstance(event, Started):
            self._head.model = event.model
            return b""
        if isinstance(event, Failed):
            return frame(error_body(event.error)) + DONE
        if isinstance(event, Finished):
            last = wire.TextChoice(text="", index=choice, finish_reason=event.reason)
            return self._chunk(last) + self._end.finish(event.usage, choice)
        raise _unexpected(event)

    def _text(self, event: TextDelta, choice: int) -> bytes:
        if self._writers:
            added = wire.TextChoice(text=event.text, index=choice)
            added.logprobs = self._writers[choice].write(event.text, event.logprobs)
            return self._chunk(added)
        text_frame = self._text_frames.get(choice)
        if text_frame is None:
            empty = self._chunk(wire.TextChoice(text="", index=choice))
            text_frame = self._text_frames[choice] = TextFrame(empty)
        return text_frame.around(event.text)

    def _chunk(self, choice: wire.TextChoice) -> bytes:
        head = self._head
        chunk = wire.TextChunk(id=head.id, created=head.created, model=head.model, choices=[choice])
        return frame(msgspec.json.encode(chunk))


class TextBodyEncoder:
    """Collects a generation, or one for each choice, into one `text_completion`."""

    def __init__(self, call: GenerationCall, head: AnswerHead) -> None:
        self._head = head
        self._usage = UsageTotal(call)
        self._texts: list[list[str]] = [[] for _ in range(call.num_choices)]
        self._writers = _writers(call)
        self._logprobs = [TextLogprobs([], [], [], []) for _ in self._writers]
        self._reasons = [""] * call.num_choices

    def add(self, event: GenEvent, choice: int = 0) -> None:
        """Take the next event of one choice; see `BodyEncoder.add`."""
        if isinstance(event, TextDelta):
            self._texts[choice].append(event.text)
            if self._writers:
                written = self._writers[choice].write(event.text, event.logprobs)
                self._logprobs[choice].extend(written)
        elif isinstance(event, Started):
            self._head.model = event.model
        elif isinstance(event, Failed):
            raise event.error
        elif isinstance(event, Finished):
            self._reasons[choice] = event.reason
            self._usage.add(event.usage, choice)
        else:
            raise _unexpected(event)

    def body(self) -> bytes:
        """The answer; see `BodyEncoder.body`."""
        if not self._usage.is_complete:
            raise InternalError("The generation ended without an end.")
        choices = [
            wire.TextChoice(text="".join(texts), index=index, finish_reason=reason)
            for index, (texts, reason) in enumerate(zip(self._texts, self._reasons, strict=True))
        ]
        for choice, logprobs in zip(choices, self._logprobs, strict=False):
            choice.logprobs = logprobs
        answer = wire.TextAnswer(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            usage=self._usage.wire(),
        )
        return msgspec.json.encode(answer)


def _raw_prompts(prompt: wire.WirePrompt) -> tuple[RawPrompt, ...]:
    if isinstance(prompt, str):
        return (prompt,)
    texts = [item for item in prompt if isinstance(item, str)]
    ids = [item for item in prompt if isinstance(item, int)]
    lists = [tuple(item) for item in prompt if isinstance(item, list)]
    if not prompt or max(len(texts), len(ids), len(lists)) < len(prompt):
        raise InvalidRequest(
            "prompt must be a text, a list of token ids, or a list of only one of these.",
            param="prompt",
        )
    return (tuple(ids),) if ids else (*texts, *lists)


def _logprobs(given: int | bool | None) -> int | None:
    """False is how chat says that none are wanted."""
    if given is None or given is False:
        return None
    if given is True or not 0 <= given <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"logprobs must be a whole number from 0 to {MAX_TOP_LOGPROBS}.", param="logprobs"
        )
    return given


def _writers(call: GenerationCall) -> list[LogprobWriter]:
    """One for each choice; none if log probabilities are not asked for."""
    if call.sampling.logprobs is None:
        return []
    return [LogprobWriter() for _ in range(call.num_choices)]


def _unexpected(event: GenEvent) -> InternalError:
    return InternalError(f"A raw prompt's answer has text only, not {type(event).__name__}.")
