"""Grammars: which tokens may come next.

Two bounds keep a malicious grammar from hurting the other requests: `limits` cap the work of one
compilation and of one mask, and what fails does so in its own matcher.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import llguidance

from luce.engine.sampling.masks import Words, mask_words
from luce.errors import InvalidGrammar
from luce.grammar import GrammarFault, GrammarVocabulary
from luce.protocol.sampling import GrammarSpec

_MAX_CACHED = 32
_MAX_THREADS = 4

_UNUSABLE = "The model cannot follow the schema or grammar given for its answer: {}."


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


@dataclass(frozen=True, slots=True)
class CompiledGrammar(GrammarSpec):
    """A grammar and what was compiled of it, which lives as long as the request that holds it.

    Attributes:
        compiled: at the grammar's beginning; only copies of it go on.
    """

    compiled: llguidance.LLMatcher = field(compare=False, repr=False)

    def matcher(self) -> Matcher:
        """A matcher at the beginning; takes no time."""
        return Matcher(self.compiled.deep_copy())


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
        self._vocabulary = GrammarVocabulary(tokens, control_ids, end_ids)
        self.end_ids = self._vocabulary.end_ids
        self.mask_words = mask_words(self._vocabulary.size)
        self._executor = llguidance.LLExecutor(_MAX_THREADS)
        self._cache: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._cache_lock = threading.Lock()

    def compiled(self, grammar: GrammarSpec) -> CompiledGrammar:
        """A grammar, compiled; one that was used lately is not compiled again. From any thread.

        Raises:
            InvalidGrammar: it has errors, or is too large.
        """
        if isinstance(grammar, CompiledGrammar):
            return grammar
        with self._cache_lock:
            found = self._cache.get(grammar.lark)
        if found is None:
            found = self._compile(grammar.lark)
        with self._cache_lock:
            self._cache[grammar.lark] = found
            self._cache.move_to_end(grammar.lark)
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
            return found

    def matcher(self, grammar: GrammarSpec) -> Matcher:
        """A matcher at the beginning of a grammar.

        Raises:
            InvalidGrammar: as `compiled`.
        """
        return self.compiled(grammar).matcher()

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

    def _compile(self, lark: str) -> CompiledGrammar:
        try:
            return CompiledGrammar(lark, self._vocabulary.compile(lark))
        except GrammarFault as fault:
            raise InvalidGrammar(_UNUSABLE.format(fault.why)) from fault
