"""OutputPipeline: the tokens of one generation become its events: detokenise, then stop strings.

Usage counts every token the worker delivered up to the one that completed a stop string, and
the end token that finished the text, as OpenAI's API counts; the worker keeps that token to
itself. Overshoot behind a stop string is not counted. Streaming does not change any of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from luce.text.detokenizer import Detokenizer
from luce.text.events import Finished, FinishKind, GenEvent, TextDelta, TokenUsage
from luce.text.stop import StopMatcher


class OutputPipeline:
    """One generation's way from token ids to events; fed in any portions, same text and end.

    Args:
        detokenizer: fresh, for this generation.
        stops: stop strings, none of them empty.
        prompt_tokens: tokens of the prompt, for usage.
        cached_tokens: how many of them the prefix cache held.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        *,
        prompt_tokens: int,
        cached_tokens: int = 0,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = cached_tokens
        self._completion_tokens = 0
        self._finished = False

    @property
    def stopped(self) -> bool:
        """A stop string was found: the worker should be told to stop."""
        return self._stops.matched is not None

    @property
    def finished(self) -> bool:
        """`Finished` was given; whatever is fed now is ignored."""
        return self._finished

    @property
    def usage(self) -> TokenUsage:
        """Tokens so far, as they will be reported."""
        return TokenUsage(self._prompt_tokens, self._cached_tokens, self._completion_tokens)

    def feed(self, token_ids: Sequence[int], finish: FinishKind | None = None) -> list[GenEvent]:
        """Take what one step added.

        Args:
            token_ids: the new tokens.
            finish: set when they are the last ones; "stop" means an end token came behind them.

        Returns:
            At most one `TextDelta`, then `Finished` if this was the end or a stop string came.
        """
        if self._finished:
            return []
        text = self._take(token_ids)
        if finish is not None and not self.stopped:
            self._completion_tokens += finish == "stop"
            self._detokenizer.flush()
            text += self._stops.flush()
        events: list[GenEvent] = [TextDelta(text)] if text else []
        if self.stopped:
            events.append(self._finish("stop"))
        elif finish is not None:
            events.append(self._finish(finish))
        return events

    def _take(self, token_ids: Sequence[int]) -> str:
        # Token by token, so that the count ends with the token that completes a stop string.
        shown: list[str] = []
        for token_id in token_ids:
            self._completion_tokens += 1
            shown.append(self._stops.feed(self._detokenizer.feed((token_id,))))
            if self.stopped:
                break
        return "".join(shown)

    def _finish(self, reason: FinishKind) -> Finished:
        self._finished = True
        return Finished(reason, self.usage, self._stops.matched)
