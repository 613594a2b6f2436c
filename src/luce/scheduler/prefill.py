"""Which prompt tokens the next step computes: shared prefixes once, the rest in turns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from luce.kv.manager import KVManager
from luce.kv.spec import blocks_for
from luce.scheduler.checkpoints import CheckpointPlanner, ComingCheckpoints
from luce.scheduler.fairness import Claim, deal
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.sequence import Sequence as TokenSequence
from luce.scheduler.sequence import SequenceStatus


class PrefillPlanner:
    """Deals a step's prompt tokens; remembers only whose turn was last.

    Of several sequences about to compute the same block, the one that is furthest, then the
    oldest, computes it; the others wait and take it over once it is computed. Nobody waits
    for one that waits: the furthest never does. If it is cancelled, the next one in that
    order has nobody ahead and goes on.

    With recurrent layers, blocks are of use only where the state behind them is saved. So those
    who wait, wait for checkpoints, and only while their row has not started: from then on its
    state follows its own steps.

    Args:
        kv: the blocks.
        limits: chunk, turns.
        checkpoints: where recurrent states are saved.
    """

    def __init__(
        self, kv: KVManager, limits: SchedulerLimits, checkpoints: CheckpointPlanner
    ) -> None:
        self._kv = kv
        self._limits = limits
        self._checkpoints = checkpoints
        self._last_order = -1

    def plan(self, seated: Sequence[TokenSequence]) -> list[tuple[TokenSequence, int]]:
        """Choose sequences and token counts for the next step.

        Also lets sequences skip what others have computed for them.

        Args:
            seated: all sequences that hold a row, by order of admission.

        Returns:
            At most `max_prefill_sequences` sequences, or as many as fill the chunk, oldest
            first, with at least one token each and at most `chunk` together; empty only if
            nobody has prompt tokens left that are not being computed. Which ones goes round
            from step to step, so that each is served at least every as many steps as there
            are sequences.
        """
        waiting = [seq for seq in seated if seq.status is SequenceStatus.PREFILL]
        if not waiting:
            return []
        for seq in waiting:
            if seq.table.keys and (seq.needs_start or not self._kv.states.is_used):
                seq.skip(self._kv.adopt(seq.table, seq.num_scheduled, seq.num_tokens))
        if self._kv.states.is_used:
            quotas = self._quotas_to_marks(seated, waiting)
        else:
            quotas = self._quotas(seated, waiting)
        able = [seq for seq in waiting if quotas[seq.order] > 0]
        if not able:
            return []
        cohort = self._cohort(able, quotas)
        claims = [Claim(seq.order, quotas[seq.order]) for seq in cohort]
        dealt = deal(claims, self._limits.chunk, self._limits.quantum, self._last_order)
        self._last_order = dealt.last_order
        return [(seq, dealt.grants[seq.order]) for seq in cohort if seq.order in dealt.grants]

    def _cohort(self, able: list[TokenSequence], quotas: dict[int, int]) -> list[TokenSequence]:
        """The next ones in turn after the one served last, oldest first.

        Where the usual number of them leaves some of the chunk, more come for what is left of
        it: lowered, their quotas take nothing from the others.
        """
        first = bisect_right(able, self._last_order, key=_ORDER)
        cohort: list[TokenSequence] = []
        left = self._limits.chunk
        for seq in able[first:] + able[:first]:
            if len(cohort) >= self._limits.max_prefill_sequences:
                if left <= 0:
                    break
                quotas[seq.order] = min(quotas[seq.order], left)
            left -= quotas[seq.order]
            cohort.append(seq)
        return sorted(cohort, key=_ORDER)

    def _quotas(
        self, seated: Iterable[TokenSequence], waiting: Iterable[TokenSequence]
    ) -> dict[int, int]:
        """Tokens each waiting sequence may compute before it meets another's block."""
        taken: set[bytes] = set()
        for seq in seated:
            is_waiting = seq.status is SequenceStatus.PREFILL
            if not is_waiting and len(seq.table.keys) > seq.table.num_committed:
                taken.update(self._unfinished_keys(seq, 0))
        quotas: dict[int, int] = {}
        for seq in _furthest_first(waiting):
            quotas[seq.order] = quota = self._own_tokens(seq, taken)
            if seq.table.keys:
                taken.update(self._unfinished_keys(seq, quota))
        return quotas

    def _quotas_to_marks(
        self, seated: Iterable[TokenSequence], waiting: Sequence[TokenSequence]
    ) -> dict[int, int]:
        """Tokens to each waiting sequence's next mark; none while a checkpoint comes its way."""
        self._checkpoints.mark(waiting)
        coming = ComingCheckpoints(self._kv.block_tokens)
        for seq in seated:
            coming.add_saves(seq)
        quotas: dict[int, int] = {}
        for seq in _furthest_first(waiting):
            if seq.needs_start and coming.can_help(seq):
                quotas[seq.order] = 0
                continue
            to_mark = self._checkpoints.tokens_to_mark(seq)
            quotas[seq.order] = min(to_mark, self._limits.chunk)
            coming.add_marks(seq)
        return quotas

    def _unfinished_keys(self, seq: TokenSequence, num_tokens: int) -> list[bytes]:
        """Keys of blocks being computed, or about to be with `num_tokens` more tokens."""
        end = blocks_for(seq.num_scheduled + num_tokens, self._kv.block_tokens)
        return seq.table.keys[seq.table.num_committed : end]

    def _own_tokens(self, seq: TokenSequence, taken: set[bytes]) -> int:
        """Tokens from its position to the first block that is cached or another's work."""
        block_tokens = self._kv.block_tokens
        position = seq.num_scheduled
        end = min(seq.num_tokens, position + self._limits.chunk)
        if not seq.table.keys:
            return end - position
        # The block of the last token is never taken over: its logits are wanted.
        last = min((seq.num_tokens - 1) // block_tokens, blocks_for(end, block_tokens))
        first = blocks_for(position, block_tokens)
        keys = seq.table.keys[first:last]
        if taken.isdisjoint(keys) and not self._kv.has_any(keys):
            return end - position
        for index, key in enumerate(keys, start=first):
            if key in taken or self._kv.has_any((key,)):
                return index * block_tokens - position
        return end - position


_ORDER = attrgetter("order")


def _furthest_first(waiting: Iterable[TokenSequence]) -> list[TokenSequence]:
    """By order of admission those that are equally far; they come by it."""
    return sorted(waiting, key=attrgetter("num_scheduled"), reverse=True)
