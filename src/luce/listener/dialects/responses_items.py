"""Items of an answer while the model writes them, each with the events of its stream."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator

from luce.listener.dialects import responses_answer as answer
from luce.listener.dialects.logprobs import TokenLogprob
from luce.listener.dialects.responses_answer import Event
from luce.listener.dialects.responses_prompt import sealed
from luce.listener.dialects.responses_tools import ClientTool, custom_input


class OpenItem(ABC):
    """One item.

    Args:
        index: its place in the output.
    """

    _prefix = "item"

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = f"{self._prefix}_{secrets.token_hex(16)}"
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """All that was written."""
        return "".join(self._texts)

    @abstractmethod
    def item(self, status: str) -> answer.AnswerItem:
        """The item with all that was written."""

    def begin(self) -> Iterator[Event]:
        """Events that come before the first piece."""
        item = self.item(answer.IN_PROGRESS)
        yield Event(type="response.output_item.added", output_index=self.index, item=item)

    def grow(self, text: str) -> Iterator[Event]:
        """Take a piece: events that tell of it."""
        self._texts.append(text)
        yield from self._pieces(text)

    def end(self, status: str) -> Iterator[Event]:
        """Events that come after the last piece."""
        yield from self._whole()
        item = self.item(status)
        yield Event(type="response.output_item.done", output_index=self.index, item=item)

    @abstractmethod
    def _pieces(self, text: str) -> Iterator[Event]:
        """Events of one piece."""

    @abstractmethod
    def _whole(self) -> Iterator[Event]:
        """Events of the whole text."""

    def _event(self, kind: str) -> Event:
        return Event(type=kind, item_id=self.id, output_index=self.index)


class OpenPart(OpenItem):
    """An item of one part."""

    _added = "response.content_part.added"
    _done = "response.content_part.done"
    _text_event = ""

    @abstractmethod
    def _part(self, text: str) -> answer.AnswerPart:
        """The part."""

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        added = self._event(self._added)
        added.part = self._part("")
        yield added

    def _pieces(self, text: str) -> Iterator[Event]:
        delta = self._event(f"{self._text_event}.delta")
        delta.delta = text
        yield delta

    def _whole(self) -> Iterator[Event]:
        done = self._event(f"{self._text_event}.done")
        done.text = self.text
        yield done
        part = self._event(self._done)
        part.part = self._part(self.text)
        yield part

    def _event(self, kind: str) -> Event:
        event = super()._event(kind)
        event.content_index = 0
        return event


class OpenMessage(OpenPart):
    """What the model says."""

    _prefix = "msg"
    _text_event = "response.output_text"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs: list[TokenLogprob] = []

    def grow_with(self, text: str, logprobs: list[TokenLogprob]) -> Iterator[Event]:
        """Take a piece and how likely its tokens were: events that tell of it."""
        self._logprobs += logprobs
        for event in self.grow(text):
            event.logprobs = logprobs
            yield event

    def item(self, status: str) -> answer.Message:
        content = [] if status == answer.IN_PROGRESS else [self._part(self.text)]
        return answer.Message(id=self.id, status=status, content=content)

    def _part(self, text: str) -> answer.OutputText:
        return answer.OutputText(text, logprobs=self._logprobs)

    def _event(self, kind: str) -> Event:
        event = super()._event(kind)
        if kind.startswith(self._text_event):
            event.logprobs = self._logprobs
        return event


class OpenReasoning(OpenPart):
    """What the model thinks.

    Args:
        index: its place in the output.
        is_sealed: the client wants it in `encrypted_content` as well.
    """

    _prefix = "rs"
    _text_event = "response.reasoning_text"

    def __init__(self, index: int, *, is_sealed: bool) -> None:
        super().__init__(index)
        self._is_sealed = is_sealed

    def item(self, status: str) -> answer.ReasoningItem:
        item = answer.ReasoningItem(id=self.id, status=status, summary=[])
        if status != answer.IN_PROGRESS:
            self._fill(item)
            if self._is_sealed:
                item.encrypted_content = sealed(self.text)
        return item

    def _fill(self, item: answer.ReasoningItem) -> None:
        item.content = [answer.ReasoningText(self.text)]

    def _part(self, text: str) -> answer.AnswerPart:
        return answer.ReasoningText(text)


class OpenSummary(OpenReasoning):
    """What the model thinks, for clients that read summaries."""

    _text_event = "response.reasoning_summary_text"
    _added = "response.reasoning_summary_part.added"
    _done = "response.reasoning_summary_part.done"

    def _fill(self, item: answer.ReasoningItem) -> None:
        item.summary = [answer.SummaryText(self.text)]

    def _part(self, text: str) -> answer.AnswerPart:
        return answer.SummaryText(text)

    def _event(self, kind: str) -> Event:
        event = super()._event(kind)
        event.content_index, event.summary_index = None, 0
        return event


class OpenCall(OpenItem):
    """A call of a function.

    Args:
        index: its place in the output.
        call_id: what its result will name.
        tool: the function, in the client's words.
    """

    _prefix = "fc"

    def __init__(self, index: int, call_id: str, tool: ClientTool) -> None:
        super().__init__(index)
        self._call_id = call_id
        self._tool = tool

    def item(self, status: str) -> answer.AnswerItem:
        return answer.FunctionCall(
            id=self.id,
            status=status,
            call_id=self._call_id,
            name=self._tool.name,
            namespace=self._tool.namespace,
            arguments=self.text,
        )

    def _pieces(self, text: str) -> Iterator[Event]:
        delta = self._event("response.function_call_arguments.delta")
        delta.delta = text
        yield delta

    def _whole(self) -> Iterator[Event]:
        done = self._event("response.function_call_arguments.done")
        done.name, done.arguments = self._tool.name, self.text
        yield done


class OpenCustomCall(OpenCall):
    """A call of a custom tool; its input is told when it is whole."""

    _prefix = "ctc"

    def item(self, status: str) -> answer.AnswerItem:
        return answer.CustomToolCall(
            id=self.id,
            status=status,
            call_id=self._call_id,
            name=self._tool.name,
            namespace=self._tool.namespace,
            input=self._input if self._texts else "",
        )

    @property
    def _input(self) -> str:
        return custom_input(self.text)

    def _pieces(self, text: str) -> Iterator[Event]:
        return iter(())

    def _whole(self) -> Iterator[Event]:
        delta = self._event("response.custom_tool_call_input.delta")
        delta.delta = self._input
        yield delta
        done = self._event("response.custom_tool_call_input.done")
        done.input = self._input
        yield done
