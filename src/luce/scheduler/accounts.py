"""What results mean for sequences: tokens they gain, ends they come to, who is gone.

Every row of every step passes here, so the way of a plain decoder is short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import repeat

from luce.errors import InternalError, InvalidGrammar
from luce.kv.manager import KVManager
from luce.protocol.sampling import HiddenStates, TokenLogprobs
from luce.scheduler.outcome import RetiredSequence, SequenceDelta
from luce.scheduler.plan import (
    FAILED_TOKEN,
    GRAMMAR_ENDED_TOKEN,
    GRAMMAR_FAILED_TOKEN,
    StepResult,
)
from luce.scheduler.roster import Roster
from luce.scheduler.sequence import Ending, Sequence, SequenceStatus
from luce.scheduler.under_way import StepUnderWay

NOT_FINITE = Ending(
    "error",
    InternalError.__name__,
    "The model's logits for this request are not finite numbers; its weights are damaged or "
    "too large for the chosen dtype.",
)
_FAILURES = {
    FAILED_TOKEN: NOT_FINITE,
    GRAMMAR_FAILED_TOKEN: Ending(
        "error",
        InvalidGrammar.__name__,
        "The answer cannot be held to its schema or grammar any further: it became too complex, "
        "or leaves no token to go on with. Use a simpler one.",
    ),
}
"""Endings by the numbers in place of tokens."""


class Accounts:
    """Keeps sequences up to date with the steps that are done, and lets those go that end.

    Args:
        kv: the blocks.
        roster: the sequences.
        clock_ns: monotonic nanoseconds.

    Attributes:
        generated_tokens: sampled tokens that reached a sequence so far.
    """

    def __init__(self, kv: KVManager, roster: Roster, clock_ns: Callable[[], int]) -> None:
        self._kv = kv
        self._roster = roster
        self._clock_ns = clock_ns
        self._retired: list[RetiredSequence] = []
        self.generated_tokens = 0

    def settle(self, step: StepUnderWay, result: StepResult) -> tuple[SequenceDelta, ...]:
        """Account a finished step's items to its sequences; returns what each gained."""
        items = step.plan.items
        num_sampled = sum(item.sample for item in items)
        assert len(result.token_ids) == num_sampled, "other tokens than were asked for"
        assert len(result.logprobs) in (0, num_sampled), "not a report for each token"
        tokens = zip(result.token_ids, result.logprobs or repeat(None), strict=False)
        hidden = dict(result.hidden)
        now_ns, block_tokens = self._clock_ns(), self._kv.block_tokens
        deltas: list[SequenceDelta] = []
        for seq, item in zip(step.sequences, items, strict=True):
            seq.num_in_flight -= 1
            seq.num_computed = end = item.start + (len(item.token_ids) or 1)
            delta = None
            if item.sample:
                seq.num_unresolved -= 1
                delta = self._take(seq, *next(tokens), now_ns)
            elif seq.is_read:
                delta = self._read_out(seq, hidden.get(item.row))
            # One token more completes a block at a block's border alone.
            if item.token_ids or end % block_tokens == 0:
                self._commit(seq)
            if delta is not None:
                deltas.append(delta)
            if seq.ending is not None or seq.status is SequenceStatus.YIELDING:
                self.leave_if_idle(seq)
        return tuple(deltas)

    def finish(self, seq: Sequence, ending: Ending) -> None:
        """End a sequence that has not ended, whatever it was doing."""
        seq.ending = ending
        seq.move_to(SequenceStatus.FINISHED)
        self.leave_if_idle(seq)

    def leave_if_idle(self, seq: Sequence) -> None:
        """Let a leaving sequence go, unless a step under way still uses its blocks."""
        if seq.num_in_flight:
            return
        if seq.status is SequenceStatus.YIELDING:
            self._roster.unseat(seq)
            seq.move_to(SequenceStatus.PREEMPTED)
        elif seq.status is SequenceStatus.FINISHED:
            self._retire(seq)

    def take_retired(self) -> tuple[RetiredSequence, ...]:
        """Sequences retired since the last call, each once."""
        retired = tuple(self._retired)
        self._retired.clear()
        return retired

    def _take(
        self, seq: Sequence, token_id: int, logprobs: TokenLogprobs | None, now_ns: int
    ) -> SequenceDelta | None:
        """Account a sampled token, or what stands in place of one."""
        if token_id in _FAILURES:
            self._fail(seq, _FAILURES[token_id])
            return None
        if seq.ending is not None:
            return None
        if token_id == GRAMMAR_ENDED_TOKEN:
            seq.ending = Ending("stop")
        else:
            self.generated_tokens += 1
            seq.accept(token_id, now_ns)
            if seq.ending is None and seq.sampling.logprobs is None:
                return SequenceDelta(seq.request_id, (token_id,))
        if seq.ending is not None:
            seq.move_to(SequenceStatus.FINISHED)
        finish = None if seq.ending is None else seq.ending.finish
        # A token that stops is no text.
        kept = (token_id,) if finish != "stop" else ()
        reports: tuple[TokenLogprobs, ...] | None = None
        if seq.sampling.logprobs is not None:
            assert logprobs is not None or not kept, f"{seq.request_id}: no log probabilities came"
            reports = (logprobs,) if kept and logprobs is not None else ()
        return SequenceDelta(seq.request_id, kept, finish, reports)

    def _read_out(self, seq: Sequence, hidden: HiddenStates | None) -> SequenceDelta | None:
        """End a sequence that is read, once all of its prompt has been."""
        if seq.ending is not None or seq.num_computed != seq.num_tokens:
            return None
        if hidden is None:
            self._fail(seq, NOT_FINITE)
            return None
        # Its own blocks are known tokens, too.
        self._commit(seq)
        seq.ending = Ending("stop")
        seq.move_to(SequenceStatus.FINISHED)
        hidden = replace(hidden, cached_tokens=self._kv.known_tokens(seq.table))
        return SequenceDelta(seq.request_id, (), "stop", hidden=hidden)

    def _commit(self, seq: Sequence) -> None:
        if seq.is_shared:
            # A cancelled sequence may have computed a token it was not allowed to keep.
            num_known = min(seq.num_computed, seq.num_tokens)
            self._kv.commit(seq.table, seq.token_ids, num_known)

    def _fail(self, seq: Sequence, ending: Ending) -> None:
        seq.is_broken |= ending.error == InternalError.__name__
        if seq.ending is None:
            seq.ending = ending
            seq.move_to(SequenceStatus.FINISHED)

    def _retire(self, seq: Sequence) -> None:
        assert seq.ending is not None, f"{seq.request_id} retires without an ending"
        self._roster.remove(seq)
        seq.move_to(SequenceStatus.RETIRED)
        self._retired.append(
            RetiredSequence(
                request_id=seq.request_id,
                finish=seq.ending.finish,
                prompt_tokens=seq.num_prompt_tokens,
                cached_tokens=seq.cached_tokens,
                completion_tokens=seq.num_output_tokens,
                admitted_ns=seq.admitted_ns,
                first_token_ns=seq.first_token_ns,
                last_token_ns=seq.last_token_ns,
                retired_ns=self._clock_ns(),
                error=seq.ending.error,
                detail=seq.ending.detail,
            )
        )
