"""OutputPipeline: the tokens of one generation become its events, by way of their text.

Usage counts every token the worker delivered up to the one that completed a stop string or the
only call wanted, and the end token that finished the text, as OpenAI's API counts; the worker
keeps that token to itself. Overshoot behind it is not counted. Streaming does not change any of
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from luce.text.answer import Answer, AnswerForm
from luce.text.detokenizer import Detokenizer
from luce.text.events import Finished, FinishKind, GenEvent, TokenUsage


class OutputPipeline:
    """One generation's way from token ids to events; fed in any portions, same text and end.

    Args:
        detokenizer: fresh, for this generation.
        stops: stop strings, none of them empty.
        prompt_tokens: tokens of the prompt, for usage.
        cached_tokens: how many of them the prefix cache held.
        form: what the answer may hold besides text; only text if left out.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        *,
        prompt_tokens: int,
        cached_tokens: int = 0,
        form: AnswerForm | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._answer = Answer(stops, form or AnswerForm())
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = cached_tokens
        self._completion_tokens = 0
        self._reasoning_tokens = 0
        self._finished = False

    @property
    def stopped(self) -> bool:
        """The answer is over before its end token: the worker should be told to stop."""
        return self._answer.is_over

    @property
    def finished(self) -> bool:
        """`Finished` was given; whatever is fed now is ignored."""
        return self._finished

    @property
    def usage(self) -> TokenUsage:
        """Tokens so far, as they will be reported."""
        return TokenUsage(
            self._prompt_tokens,
            self._cached_tokens,
            self._completion_tokens,
            self._reasoning_tokens,
        )

    def feed(self, token_ids: Sequence[int], finish: FinishKind | None = None) -> list[GenEvent]:
        """Take what one step added.

        Args:
            token_ids: the new tokens.
            finish: set when they are the last ones; "stop" means an end token came behind them.

        Returns:
            What they add, neighbours of one kind joined; then `Finished` if this was the end or
            the answer is over.
        """
        if self._finished:
            return []
        self._take(token_ids)
        if finish is not None and not self.stopped:
            self._completion_tokens += finish == "stop"
            self._detokenizer.flush()
            self._answer.finish(is_cut=finish == "length")
        events = self._answer.take_events()
        if self.stopped:
            events.append(self._finish("stop"))
        elif finish is not None:
            events.append(self._finish(finish))
        return events

    def _take(self, token_ids: Sequence[int]) -> None:
        # Token by token, so that the count ends with the token that ends the answer.
        answer = self._answer
        for token_id in token_ids:
            was_reasoning = answer.in_reasoning
            answer.feed(self._detokenizer.feed((token_id,)))
            self._completion_tokens += 1
            self._reasoning_tokens += was_reasoning or answer.in_reasoning
            if answer.is_over:
                break

    def _finish(self, reason: FinishKind) -> Finished:
        self._finished = True
        if reason == "stop" and self._answer.has_calls:
            reason = "tool_calls"
        return Finished(reason, self.usage, self._answer.stop_string)
