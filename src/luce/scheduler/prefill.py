"""Which prompt tokens the next step computes: shared prefixes once, the rest in turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from luce.kv.manager import KVManager
from luce.kv.spec import blocks_for
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
    """

    def __init__(self, kv: KVManager, limits: SchedulerLimits) -> None:
        self._kv = kv
        self._limits = limits
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
            seq.skip(self._kv.adopt(seq.table, seq.num_scheduled, seq.num_tokens))
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
        for seq in sorted(waiting, key=lambda seq: (-seq.num_scheduled, seq.order)):
            quotas[seq.order] = self._own_tokens(seq, taken)
            taken.update(self._unfinished_keys(seq, quotas[seq.order]))
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
