"""PreparedPrompt: what one request has become for one model."""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass

from luce.protocol.sampling import GrammarSpec
from luce.text.call import ToolSpec
from luce.text.forced_close import ForcedClose
from luce.text.output_grammar import GrammarOrder


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A request rendered and tokenised for one model.

    Attributes:
        prompt_bytes: int32 little-endian token ids, as `Submit` carries them.
        stop: stop strings.
        stop_token_ids: tokens that end the generation; none when the request ignores them.
        splits_reasoning: reasoning is told apart from the answer.
        in_reasoning: the prompt ends inside reasoning.
        tools: the tools whose calls are taken.
        is_single_call: the generation ends with its first call.
        grammar: what the whole output must look like; None: anything may come.
        order: what is still to be made a grammar of; None: nothing.
        calls_first: where there is a grammar: calls come before any content.
        must_call: where there is a grammar: there is nothing but calls.
        close: how its reasoning is closed when its budget is used up; None: it has no budget.
        reports_logprobs: the tokens of the content are reported.
    """

    prompt_bytes: bytes
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    splits_reasoning: bool = False
    in_reasoning: bool = False
    tools: tuple[ToolSpec, ...] = ()
    is_single_call: bool = False
    grammar: GrammarSpec | None = None
    order: GrammarOrder | None = None
    calls_first: bool = False
    must_call: bool = False
    close: ForcedClose | None = None
    reports_logprobs: bool = False

    @property
    def num_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_bytes) // 4

    @property
    def grammar_chars(self) -> int:
        """Size of what is still to be made a grammar of; 0: of nothing."""
        return 0 if self.order is None else self.order.num_chars

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt's token ids."""
        ids = array("i", self.prompt_bytes)
        if sys.byteorder == "big":
            ids.byteswap()
        return tuple(ids)
