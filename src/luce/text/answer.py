"""Answer: a model's text becomes reasoning, content and tool calls, up to the first stop string.

Stop strings are looked for in what a client would see, in reasoning and in content apart: not in
tags, not in tool calls. White space that is left out in front of a call is no part of a stop
string either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from luce.text.channels import Channel, ChannelSpec, ChannelSplitter, TextPiece
from luce.text.events import GenEvent, ReasoningDelta, TextDelta, ToolCallDelta
from luce.text.logprob_trail import LogprobTrail
from luce.text.stop import StopMatcher
from luce.text.tools.parser import CallComplete, Piece, ToolParser


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer may hold besides text.

    Attributes:
        channels: the model's tags of reasoning; None: nothing is reasoning.
        in_reasoning: the prompt ends in an open tag.
        tools: fresh, for this answer; None: nothing is a call.
        reports_logprobs: the tokens of its content are reported, each with its probability.
        reasons_once: see `ChannelSplitter`.
    """

    channels: ChannelSpec | None = None
    in_reasoning: bool = False
    tools: ToolParser | None = None
    reports_logprobs: bool = False
    reasons_once: bool = False


class Answer:
    """Reads one answer, fed in any pieces.

    Args:
        stops: stop strings, none of them empty.
        form: what there is besides text.
        trail: follows the answer's tokens; None: no log probabilities are wanted.

    Attributes:
        is_only_text: all that is fed is content, and nothing in it is looked for.
        has_calls: there are complete calls.
    """

    def __init__(
        self, stops: Sequence[str], form: AnswerForm, trail: LogprobTrail | None = None
    ) -> None:
        self._tools = form.tools
        self._trail = trail
        self._num_fed = 0
        self.is_only_text = not (stops or form.tools or form.channels or trail)
        self._splitter: ChannelSplitter | None = None
        if form.channels is not None:
            self._splitter = ChannelSplitter(
                form.channels,
                in_reasoning=form.in_reasoning,
                is_verbatim=self._is_in_call,
                reasons_once=form.reasons_once,
            )
        self.has_calls = False
        self._stops = {"content": StopMatcher(stops), "reasoning": StopMatcher(stops)}
        self._channel: Channel = "content"
        self._events: list[GenEvent] = []

    @property
    def stop_string(self) -> str | None:
        """The stop string found."""
        return self._stops["content"].matched or self._stops["reasoning"].matched

    @property
    def is_over(self) -> bool:
        """A stop string or the only call wanted was found: nothing more will be given out."""
        return self.stop_string is not None or (self._tools is not None and self._tools.is_full)

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning, for all that is known."""
        return self._splitter is not None and self._splitter.in_reasoning

    def feed(self, text: str) -> None:
        """Take more text."""
        self._num_fed += len(text)
        if self._splitter is None:
            if text:
                self._take(TextPiece("content", text, self._num_fed))
            return
        for piece in self._splitter.feed(text):
            self._take(piece)

    def finish(self, *, is_cut: bool, in_close: bool = False) -> None:
        """The text has ended.

        Args:
            is_cut: it was cut off by its length.
            in_close: it was cut off while reasoning was being closed; half a tag is not shown.
        """
        if self._splitter is not None:
            is_markup = is_cut and self._tools is not None and self._tools.must_come
            for piece in self._splitter.flush(hides_half_tag=in_close):
                if piece.channel == "reasoning" or not is_markup or self._is_in_call():
                    self._take(piece)
        if self._tools is not None and not self.is_over:
            self._show(self._tools.finish(is_cut=is_cut))
        self._release()

    def take_events(self) -> list[GenEvent]:
        """What was found since they were taken last, neighbours of one kind joined."""
        events, self._events = self._events, []
        return events

    def _is_in_call(self) -> bool:
        return self._tools is not None and self._tools.in_call

    def _take(self, piece: TextPiece) -> None:
        if self.is_over:
            return
        if self._trail is not None:
            self._trail.enter_parser(piece)
        self._show((piece,) if self._tools is None else self._tools.feed(piece))

    def _show(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if self.stop_string is not None:
                return
            if isinstance(piece, TextPiece):
                if piece.channel != self._channel:
                    self._release()
                    self._channel = piece.channel
                if self._trail is not None:
                    self._trail.leave_parser(piece)
                self._add_text(self._stops[piece.channel].feed(piece.text))
            elif isinstance(piece, CallComplete):
                self.has_calls = True
            else:
                self._release()
                self._add(piece)

    def _release(self) -> None:
        """What was held for a stop string of this channel is none: something else follows."""
        self._add_text(self._stops[self._channel].flush())
        if self._trail is not None:
            self._add_content(self._trail.settle())

    def _add_text(self, text: str) -> None:
        if self._channel == "content" and self._trail is not None:
            self._add_content(self._trail.show(text))
            if self.stop_string is not None:
                self._add_content(self._trail.cut())
        elif text:
            kind = ReasoningDelta if self._channel == "reasoning" else TextDelta
            self._add(kind(text))

    def _add_content(self, delta: TextDelta | None) -> None:
        if delta is not None:
            self._add(delta)

    def _add(self, event: GenEvent) -> None:
        last = self._events[-1] if self._events else None
        joined: GenEvent | None = None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            joined = TextDelta(last.text + event.text, last.logprobs + event.logprobs)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            joined = ReasoningDelta(last.text + event.text)
        elif isinstance(event, ToolCallDelta) and isinstance(last, ToolCallDelta):
            joined = ToolCallDelta(event.index, last.arguments + event.arguments)
        if joined is None:
            self._events.append(event)
        else:
            self._events[-1] = joined
