"""GrammarCompiler: tries a grammar before a worker gets it."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable

import llguidance

from luce.text.vocabulary import TokenVocabulary

MAX_KEPT = 512
"""Verdicts kept, so that a client's schema is compiled once and not with each request."""

_FREE_SPELLING = '\n%llguidance {"no_forcing": true}\n'
"""As the worker does it: text with one reading only may be cut into tokens in any way."""

_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
"""No laxer than the worker's."""


class GrammarCompiler:
    """Compiles grammars against one model's vocabulary. Threads may share it.

    Compiling gives the interpreter's lock away. What it costs is bounded by whoever writes the
    grammar; the limits of the compiler itself bound memory.

    Args:
        vocabulary: lists the model's tokens; asked once, when the first grammar comes.
    """

    def __init__(self, vocabulary: Callable[[], TokenVocabulary]) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()

    def fault(self, lark: str) -> str | None:
        """Why a grammar cannot be followed, in one line; None if it can."""
        key = hashlib.blake2b(lark.encode(), digest_size=16).digest()
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
        verdict = self._compile(lark)
        with self._lock:
            self._verdicts[key] = verdict
            if len(self._verdicts) > MAX_KEPT:
                self._verdicts.popitem(last=False)
        return verdict

    def _compile(self, lark: str) -> str | None:
        try:
            matcher = llguidance.LLMatcher(
                self._ready_tokenizer(), lark + _FREE_SPELLING, log_level=0, limits=_LIMITS
            )
        except BaseException as error:
            # A panic of the native code; its class has no name to import and is no Exception.
            if type(error).__name__ != "PanicException":
                raise
            return "it is malformed"
        if not matcher.is_error():
            matcher.compute_bitmask()
        if not matcher.is_error():
            return None if not matcher.is_stopped() else "nothing at all is valid"
        return _first_line(matcher.get_error())

    def _ready_tokenizer(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = build_tokenizer(self._vocabulary())
            return self._tokenizer


class _Tokens:
    """A vocabulary in the shape the compiler asks for."""

    bos_token_id = None

    def __init__(self, vocabulary: TokenVocabulary, end_id: int) -> None:
        self.tokens = vocabulary.tokens if vocabulary.end_ids else [*vocabulary.tokens, b""]
        self.special_token_ids = list(vocabulary.control_ids)
        self.eos_token_id = end_id

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("a grammar that forces no spelling tokenises nothing")


def build_tokenizer(vocabulary: TokenVocabulary) -> llguidance.LLTokenizer:
    """A vocabulary, ready to compile grammars with; takes some 2 us a token."""
    end_ids = list(vocabulary.end_ids) or [len(vocabulary.tokens)]
    tokens = llguidance.TokenizerWrapper(_Tokens(vocabulary, end_ids[0]))
    return llguidance.LLTokenizer(tokens, eos_token=end_ids)


def _first_line(error: str) -> str:
    """The compiler's words without the grammar, which holds our own parts as well."""
    line = error.strip().split("\n", 1)[0]
    line = re.sub(r"^(?:at )?[0-9]+\([0-9]+\): ", "", line)
    return line.removeprefix("failed to compile JSON schema: ")[:300]
