"""What listener and worker share of grammars: limits, a vocabulary in shape, faults in words.

Both compile: the listener to refuse early, the worker to follow. What one of them accepts the
other has to accept, so both do it here. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from luce.units import cut

if TYPE_CHECKING:
    import llguidance

MAX_ROW_ITEMS = 4_000
"""Readings of what was written that are still open at one place: 500 objects in an `anyOf`, 3,000
in an `enum`. A mask over a row as full as that takes some 10 ms."""

# The model spells the text as it likes; otherwise only one way of cutting a forced text into
# tokens would be allowed, which needs the tokenizer.
_FREE_SPELLING = '\n%llguidance {"no_forcing": true}\n'

_MAX_MESSAGE = 300
NOTHING_VALID = "nothing at all is valid"

_SENTENCES = (
    (r"NoExtension", NOTHING_VALID),
    (r"Failed to generate regex for", "the bounds of a number are too far away"),
    (r"coerce_one_of", "the members of a oneOf are not clearly apart; use anyOf instead"),
    (
        r"items; max is|[Tt]oo many items",
        "it leaves too much open at one place: too many alternatives or optional properties",
    ),
    (
        r"fuel|lexer configuration|too (?:big|many)|[Gg]rammar size|lexer states",
        "it is too large or too ambiguous",
    ),
)
"""What the compiler says, by a part of it, and what a client is told instead."""


@cache
def limits() -> llguidance.LLParserLimits:
    """Caps on the work of one mask.

    A mask may walk some 14,000 units of lexer fuel and 20,000 items a millisecond, and a lexer
    state takes up to 2 kB (llguidance's own figures): at most 20 ms and 40 MB. An ambiguous
    grammar whose rows are full was measured at 100 ms a token before it breaks.
    """
    import llguidance  # Takes 6 MB, which servers without grammars do not need.

    return llguidance.LLParserLimits(
        max_items_in_row=MAX_ROW_ITEMS,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


class GrammarFault(Exception):
    """A grammar cannot be followed.

    Attributes:
        why: a clause without a full stop, in one line, without the grammar itself.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class GrammarVocabulary:
    """One model's tokens, ready to compile grammars with; takes some 2 us a token. Thread-safe.

    Args:
        tokens: the bytes of each id, empty for an id without text.
        control_ids: control tokens; a grammar allows them by name only.
        end_ids: tokens that a complete output may be ended with.

    Attributes:
        end_ids: these; if there are none, an id behind the vocabulary.
        size: ids, that one included.
        tokenizer: llguidance's own form of them.
    """

    def __init__(
        self, tokens: Sequence[bytes], control_ids: Sequence[int], end_ids: Sequence[int]
    ) -> None:
        import llguidance

        self.end_ids = tuple(end_ids) or (len(tokens),)
        texts = [*tokens] if end_ids else [*tokens, b""]
        self.size = len(texts)
        shape = llguidance.TokenizerWrapper(_Shape(texts, [*control_ids], self.end_ids[0]))
        self.tokenizer = llguidance.LLTokenizer(shape, eos_token=list(self.end_ids))

    def compile(self, lark: str) -> llguidance.LLMatcher:
        """A matcher at a grammar's beginning, which has shown that it can begin.

        Runs without the interpreter's lock. What it costs is bounded by who writes the grammar;
        `limits` bound memory and what comes later.

        Raises:
            GrammarFault: it has errors, allows nothing, or is too large.
        """
        import llguidance

        try:
            matcher = llguidance.LLMatcher(
                self.tokenizer, lark + _FREE_SPELLING, log_level=0, limits=limits()
            )
        except BaseException as error:
            # A panic of the native code; its class has no name to import and is no Exception.
            if type(error).__name__ != "PanicException":
                raise
            raise GrammarFault("it is malformed") from error
        first = matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            raise GrammarFault(in_words(first.get_error()))
        if first.is_stopped():
            raise GrammarFault(NOTHING_VALID)
        return matcher


def fault_ahead(matcher: llguidance.LLMatcher, token_ids: Sequence[int]) -> str | None:
    """What goes wrong while an output goes on by these tokens, as far as they are allowed.

    Args:
        matcher: where it goes on from; stays there.
    """
    ahead = matcher.deep_copy()
    for token_id in token_ids:
        if ahead.is_stopped() or not ahead.try_consume_tokens([token_id]):
            break
        ahead.compute_bitmask()
        if ahead.is_error():
            break
    return in_words(ahead.get_error()) if ahead.is_error() else None


def in_words(error: str) -> str:
    """What the compiler says, for whoever wrote the schema or grammar."""
    for part, sentence in _SENTENCES:
        if re.search(part, error):
            return sentence
    line = error.strip().split("\n", 1)[0].partition("<non-verbose")[0].strip()
    line = re.sub(r"^(?:at )?[0-9]+\([0-9]+\): ", "", line)
    line = re.sub(r"; following special tokens are available.*|: regex parse error:$", "", line)
    line = line.removeprefix("failed to compile JSON schema: ")
    line = line.replace("Unsatisfiable schema:", "no value is valid:").rstrip(".")
    return cut(line, _MAX_MESSAGE)


class _Shape:
    """The form llguidance wants a vocabulary in."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], control_ids: list[int], end_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = control_ids
        self.eos_token_id = end_id

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("a grammar that forces no spelling tokenises nothing")
