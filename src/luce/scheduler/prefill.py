"""Which prompt tokens the next step computes: shared prefixes once, the rest in turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
            At most `max_prefill_sequences` sequences, oldest first, with at least one token
            each and at most `chunk` together; empty only if nobody has prompt tokens left
            that are not being computed. Which ones goes round from step to step, so that
            each is served at least every as many steps as there are sequences.
        """
        waiting = [seq for seq in seated if seq.status is SequenceStatus.PREFILL]
        for seq in waiting:
            if seq.needs_start or not self._kv.states.is_used:
                seq.skip(self._kv.adopt(seq.table, seq.num_scheduled, seq.num_tokens))
        if self._kv.states.is_used:
            quotas = self._quotas_to_marks(seated, waiting)
        else:
            quotas = self._quotas(seated, waiting)
        able = [seq for seq in waiting if quotas[seq.order] > 0]
        if not able:
            return []
        cohort = self._cohort(able)
        claims = [Claim(seq.order, quotas[seq.order]) for seq in cohort]
        dealt = deal(claims, self._limits.chunk, self._limits.quantum, self._last_order)
        self._last_order = dealt.last_order
        return [(seq, dealt.grants[seq.order]) for seq in cohort if seq.order in dealt.grants]

    def _cohort(self, able: list[TokenSequence]) -> list[TokenSequence]:
        """The next ones in turn after the one served last, oldest first."""
        turns = sorted(able, key=lambda seq: (seq.order <= self._last_order, seq.order))
        cohort = turns[: self._limits.max_prefill_sequences]
        return sorted(cohort, key=lambda seq: seq.order)

    def _quotas(
        self, seated: Iterable[TokenSequence], waiting: Iterable[TokenSequence]
    ) -> dict[int, int]:
        """Tokens each waiting sequence may compute before it meets another's block."""
        taken: set[bytes] = set()
        for seq in seated:
            if seq.status is not SequenceStatus.PREFILL:
                taken.update(self._unfinished_keys(seq, 0))
        quotas: dict[int, int] = {}
        for seq in sorted(waiting, key=_furthest_first):
            quotas[seq.order] = self._own_tokens(seq, taken)
            taken.update(self._unfinished_keys(seq, quotas[seq.order]))
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
        for seq in sorted(waiting, key=_furthest_first):
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
        # The block of the last token is never taken over: its logits are wanted.
        last_shareable = (seq.num_tokens - 1) // block_tokens
        first = blocks_for(position, block_tokens)
        for index, key in enumerate(seq.table.keys[first:last_shareable], start=first):
            if index * block_tokens >= end:
                break
            if key in taken or self._kv.is_cached(key):
                return index * block_tokens - position
        return end - position


def _furthest_first(seq: TokenSequence) -> tuple[int, int]:
    return -seq.num_scheduled, seq.order
