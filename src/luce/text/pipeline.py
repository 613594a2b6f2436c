"""OutputPipeline: the tokens of one generation become its events, by way of their text.

Usage counts every token the worker delivered up to the one that completed a stop string or the
only call wanted, and the end token that finished the text, as OpenAI's API counts; the worker
keeps that token to itself. Overshoot behind it is not counted. Streaming does not change any of
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from luce.protocol.sampling import ReasoningBudget, TokenLogprobs
from luce.text.answer import Answer, AnswerForm
from luce.text.detokenizer import Detokenizer
from luce.text.events import (
    CloseKind,
    ContentLogprob,
    Finished,
    FinishKind,
    GenEvent,
    TextDelta,
    TokenUsage,
)
from luce.text.logprob_trail import LogprobTrail


class OutputPipeline:
    """One generation's way from token ids to events; fed in any portions, same text and end.

    Args:
        detokenizer: fresh, for this generation.
        stops: stop strings, none of them empty.
        prompt_tokens: tokens of the prompt, for usage.
        cached_tokens: how many of them the prefix cache held.
        form: what the answer may hold besides text; only text if left out.
        budget: when reasoning is closed by force; None: never.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        *,
        prompt_tokens: int,
        cached_tokens: int = 0,
        form: AnswerForm | None = None,
        budget: ReasoningBudget | None = None,
    ) -> None:
        form = form or AnswerForm()
        self._detokenizer = detokenizer
        self._trail: LogprobTrail | None = None
        if form.reports_logprobs:
            self._trail = LogprobTrail(self._describe, has_parser=form.tools is not None)
        self._answer = Answer(stops, form, self._trail)
        self._budget = budget
        self._is_plain = budget is None and self._answer.is_only_text
        self._close_kind: CloseKind | None = None if budget is None else "natural"
        self._num_characters = 0
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

    def feed(
        self,
        token_ids: Sequence[int],
        finish: FinishKind | None = None,
        logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> list[GenEvent]:
        """Take what one step added.

        Args:
            token_ids: the new tokens.
            finish: set when they are the last ones; "stop" means an end token came behind them.
            logprobs: one for each token; looked at only if they are reported.

        Returns:
            What they add, neighbours of one kind joined; then `Finished` if this was the end or
            the answer is over.
        """
        if self._finished:
            return []
        if self._is_plain and finish is None:
            # Most answers, and of those all but the last step: worth a way of their own, which
            # takes a tenth of the time.
            self._completion_tokens += len(token_ids)
            text = self._detokenizer.feed(token_ids)
            return [TextDelta(text)] if text else []
        self._take(token_ids, logprobs)
        if finish is not None and not self.stopped:
            self._completion_tokens += finish == "stop"
            self._detokenizer.flush()
            is_cut = finish == "length"
            self._answer.finish(is_cut=is_cut, in_close=is_cut and self._is_closing)
        events = self._answer.take_events()
        if self.stopped:
            events.append(self._finish("stop"))
        elif finish is not None:
            events.append(self._finish(finish))
        return events

    def _take(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> None:
        # Token by token, so that the count ends with the token that ends the answer.
        answer = self._answer
        for index, token_id in enumerate(token_ids):
            was_reasoning = answer.in_reasoning
            if was_reasoning and self._budget is not None:
                self._note_close(token_id, self._budget)
            text = self._detokenizer.feed((token_id,))
            if self._trail is not None and logprobs is not None:
                self._follow(self._trail, token_id, logprobs[index], text)
            answer.feed(text)
            self._completion_tokens += 1
            self._reasoning_tokens += was_reasoning or answer.in_reasoning
            if was_reasoning and not answer.in_reasoning:
                self._budget = None  # Closed; the worker closes nothing twice.
            if answer.is_over:
                break

    def _follow(
        self, trail: LogprobTrail, token_id: int, logprobs: TokenLogprobs, text: str
    ) -> None:
        """Tell the trail which characters the token has bytes of, unfinished ones included."""
        start = self._num_characters
        self._num_characters += len(text)
        end = self._num_characters + self._detokenizer.is_inside_character
        trail.add(token_id, logprobs, start, end)

    def _describe(self, token_id: int, logprobs: TokenLogprobs) -> ContentLogprob:
        token_bytes = self._detokenizer.token_bytes
        top = zip(map(token_bytes, logprobs.top_ids), logprobs.top_logprobs, strict=True)
        return ContentLogprob(token_bytes(token_id), logprobs.logprob, tuple(top))

    def _note_close(self, token_id: int, budget: ReasoningBudget) -> None:
        """In open reasoning beyond the budget the worker writes the closing text."""
        if self._completion_tokens >= budget.max_tokens and token_id == budget.forced_ids[0]:
            self._close_kind = "hard"

    @property
    def _is_closing(self) -> bool:
        """Whether the worker closes the reasoning, for all that is known."""
        budget = self._budget
        return budget is not None and self._completion_tokens > budget.max_tokens

    def _finish(self, reason: FinishKind) -> Finished:
        self._finished = True
        if reason == "stop" and self._answer.has_calls:
            reason = "tool_calls"
        return Finished(reason, self.usage, self._answer.stop_string, self._close_kind)
