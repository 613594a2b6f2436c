"""Grammars: which tokens may come next. The only file here that imports llguidance.

Two bounds keep a malicious grammar from hurting the other requests: `LLParserLimits` cap the
work of one compilation and of one mask, and what fails does so in its own matcher.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import llguidance

from luce.engine.sampling.masks import Words, mask_words
from luce.errors import InvalidGrammar
from luce.protocol.sampling import GrammarSpec

# A mask may walk some 14,000 units of lexer fuel and 20,000 items a millisecond, and a lexer
# state takes up to 2 kB (llguidance's own figures): at most 20 ms and 40 MB. An ambiguous grammar
# whose rows are full was measured at 100 ms a token before it breaks; 250 optional properties of
# one object fill a row.
_LIMITS = llguidance.LLParserLimits(
    max_items_in_row=1000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)

# The model spells the text as it likes; otherwise only one way of cutting a forced text into
# tokens would be allowed, which needs the tokenizer.
_FREE_SPELLING = '\n%llguidance {"no_forcing": true}\n'

_MAX_CACHED = 32
_MAX_MESSAGE = 300
_MAX_THREADS = 4

_UNUSABLE = "The model cannot follow the schema or grammar given for its answer: {}"


class Matcher:
    """Where one sequence stands in its grammar. One call at a time, from any thread."""

    def __init__(self, inner: llguidance.LLMatcher) -> None:
        self.inner = inner

    @property
    def is_broken(self) -> bool:
        """Whether it went over its limits, or was given a token it does not allow."""
        return bool(self.inner.is_error())

    def consume(self, token_ids: Sequence[int]) -> bool:
        """Go on by these tokens; False: the grammar does not allow them, now or ever after."""
        return bool(self.inner.consume_tokens(list(token_ids)))


class GrammarCompiler:
    """Makes matchers for one vocabulary.

    Args:
        tokens: the bytes of each id, empty for an id without text.
        control_ids: control tokens; a grammar allows them by name only.
        end_ids: tokens that a complete output may be ended with.

    Attributes:
        end_ids: these; if there are none, an id behind the vocabulary.
        mask_words: width of a mask.
    """

    def __init__(
        self, tokens: Sequence[bytes], control_ids: Sequence[int], end_ids: Sequence[int]
    ) -> None:
        self.end_ids = tuple(end_ids) or (len(tokens),)
        texts = [*tokens] if end_ids else [*tokens, b""]
        self.mask_words = mask_words(len(texts))
        vocabulary = _Vocabulary(texts, [*control_ids], self.end_ids[0])
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(vocabulary), eos_token=list(self.end_ids)
        )
        self._executor = llguidance.LLExecutor(_MAX_THREADS)
        self._cache: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._cache_lock = threading.Lock()

    def matcher(self, grammar: GrammarSpec) -> Matcher:
        """A matcher at the beginning of a grammar; one that was used lately is not compiled again.

        From any thread.

        Raises:
            InvalidGrammar: it has errors, or is too large.
        """
        with self._cache_lock:
            compiled = self._cache.get(grammar.lark)
        if compiled is None:
            compiled = self._compile(grammar.lark)
        with self._cache_lock:
            self._cache[grammar.lark] = compiled
            self._cache.move_to_end(grammar.lark)
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
            return Matcher(compiled.deep_copy())

    def fill(self, matchers: Sequence[Matcher], masks: Words) -> None:
        """Write the tokens each matcher allows into its line; runs without the interpreter's lock.

        Args:
            matchers: n; one that breaks leaves a line that means nothing.
            masks: i32 [n, mask_words], contiguous; bit i of word w stands for id 32 w + i.
        """
        lines = [(matcher.inner, line) for line, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(
            lines, masks.ctypes.data, masks.strides[0], len(lines)
        )

    def _compile(self, lark: str) -> llguidance.LLMatcher:
        try:
            inner = llguidance.LLMatcher(
                self._tokenizer, lark + _FREE_SPELLING, log_level=0, limits=_LIMITS
            )
        except BaseException as error:
            # A panic of the Rust code; its class has no name to import and is no Exception.
            if type(error).__name__ != "PanicException":
                raise
            raise InvalidGrammar(_UNUSABLE.format("it is malformed")) from error
        # What allows no first token, or only with too much work, shows here.
        first = inner.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            raise InvalidGrammar(_UNUSABLE.format(_shortened(first.get_error())))
        return inner


def _shortened(message: str) -> str:
    """A message without llguidance's internals and without much of a long grammar."""
    told = message.partition("<non-verbose")[0].strip()
    return told if len(told) <= _MAX_MESSAGE else f"{told[:_MAX_MESSAGE]} ..."


class _Vocabulary:
    """The form llguidance wants a vocabulary in."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], control_ids: list[int], end_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = control_ids
        self.eos_token_id = end_id

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("a grammar that forces no spelling tokenises nothing")
