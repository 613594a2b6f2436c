"""GrammarCheck: tries a grammar before a worker gets it."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from luce.grammar import GrammarFault, GrammarVocabulary, fault_ahead
from luce.text.vocabulary import TokenVocabulary

MAX_KEPT = 512
"""Verdicts kept, so that a client's schema is compiled once and not with each request."""

_WALKS = (b'{\n "', b'[{\n "', b'"')
"""Beginnings of JSON. Where many alternatives or properties are open, a grammar breaks behind
them, not before."""


class GrammarCheck:
    """Tries grammars against one model's vocabulary. Threads may share it.

    Args:
        vocabulary: lists the model's tokens; asked once, when the first grammar comes.
    """

    def __init__(self, vocabulary: Callable[[], TokenVocabulary]) -> None:
        self._list_tokens = vocabulary
        self._lock = threading.Lock()
        self._learning = threading.Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._bytes: dict[int, int] = {}
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._under_way: dict[bytes, Future[str | None]] = {}

    def fault(self, lark: str, lead: Sequence[int] = ()) -> str | None:
        """Why a grammar cannot be followed, in one line; None if it can.

        A grammar that another thread is trying is waited for.

        Args:
            lark: the grammar.
            lead: tokens behind which the answer itself begins.
        """
        key = hashlib.blake2b(lark.encode(), digest_size=16).digest()
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
                return self._verdicts[key]
            others = self._under_way.get(key)
            ours = self._under_way.setdefault(key, Future())
        if others is not None:
            return others.result()
        try:
            verdict = self.try_once(lark, lead)
        except BaseException as error:
            with self._lock:
                del self._under_way[key]
            ours.set_exception(error)
            raise
        with self._lock:
            self._keep(key, verdict)
            del self._under_way[key]
        ours.set_result(verdict)
        return verdict

    def try_once(self, lark: str, lead: Sequence[int] = ()) -> str | None:
        """As `fault`, for what is not likely to be asked again: nothing is looked up or kept."""
        vocabulary = self._ready_vocabulary()
        try:
            matcher = vocabulary.compile(lark)
        except GrammarFault as refused:
            return refused.why
        walks = ([self._bytes[byte] for byte in walk if byte in self._bytes] for walk in _WALKS)
        faults = (fault_ahead(matcher, [*lead, *walk]) for walk in walks)
        return next((fault for fault in faults if fault is not None), None)

    def _keep(self, key: bytes, verdict: str | None) -> None:
        self._verdicts[key] = verdict
        if len(self._verdicts) > MAX_KEPT:
            self._verdicts.popitem(last=False)

    def _ready_vocabulary(self) -> GrammarVocabulary:
        with self._learning:
            if self._vocabulary is None:
                known = self._list_tokens()
                controls = frozenset(known.control_ids)
                self._bytes = {
                    token[0]: token_id
                    for token_id, token in enumerate(known.tokens)
                    if len(token) == 1 and token_id not in controls
                }
                self._vocabulary = GrammarVocabulary(known.tokens, known.control_ids, known.end_ids)
            return self._vocabulary
