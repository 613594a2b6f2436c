"""All live sequences, oldest first, and who has which row and blocks."""

from __future__ import annotations

from heapq import heappop, heappush
from operator import attrgetter

from luce.kv.manager import KVManager
from luce.kv.spec import headroom_blocks
from luce.scheduler.sequence import Seat, Sequence, SequenceStatus

_DEVELOPING = (SequenceStatus.PREFILL, SequenceStatus.DECODE)
_LEAVING = (SequenceStatus.YIELDING, SequenceStatus.FINISHED)


class Roster:
    """Keeps sequences by id in order of admission and seats them.

    Args:
        kv: the blocks.
        max_rows: rows 0 .. max_rows-1; the lowest free one is given out first.
    """

    def __init__(self, kv: KVManager, max_rows: int) -> None:
        self._kv = kv
        self._max_rows = max_rows
        self._free_rows = list(range(max_rows))
        self._sequences: dict[str, Sequence] = {}
        self._standing: dict[str, Sequence] = {}
        """Those without a row, which are the preempted ones."""

    @property
    def has_free_row(self) -> bool:
        """Whether one more sequence can get a row."""
        return bool(self._free_rows)

    @property
    def is_empty(self) -> bool:
        """Whether no sequence lives."""
        return not self._sequences

    def find(self, request_id: str) -> Sequence | None:
        """The live sequence of this id."""
        return self._sequences.get(request_id)

    def all(self) -> list[Sequence]:
        """Every live sequence, oldest first."""
        return list(self._sequences.values())

    def seated(self) -> list[Sequence]:
        """Sequences with a row, oldest first."""
        return [seq for seq in self._sequences.values() if seq.seat is not None]

    def decoding(self) -> list[Sequence]:
        """Sequences that get one token a step, oldest first."""
        return [seq for seq in self._sequences.values() if seq.status is SequenceStatus.DECODE]

    def preempted(self) -> list[Sequence]:
        """Sequences that wait to be computed anew, oldest first."""
        return sorted(self._standing.values(), key=attrgetter("order"))

    def newest_developing(self) -> Sequence:
        """The youngest sequence that runs and is not about to leave; there must be one."""
        return next(seq for seq in reversed(self._sequences.values()) if seq.status in _DEVELOPING)

    def is_anyone_leaving(self) -> bool:
        """Whether blocks come free once the step under way is applied."""
        return any(seq.status in _LEAVING for seq in self._sequences.values())

    def top_up(self) -> bool:
        """Give every decoder its one block of headroom; all or nothing.

        What comes free belongs to older decoders before a newcomer gets any.
        """
        block_tokens = self._kv.block_tokens
        demands = [
            (seq.table, headroom_blocks(seq.num_scheduled, seq.limit_tokens, block_tokens))
            for seq in self.decoding()
        ]
        return self._kv.top_up(demands)

    def seat(self, seq: Sequence) -> bool:
        """Reserve a row and all blocks for the sequence's tokens, or nothing at all."""
        if not self._free_rows:
            return False
        table = self._kv.admit(seq.token_ids, seq.limit_tokens, reuse=not seq.is_read)
        if table is None:
            return False
        seq.sit(Seat(heappop(self._free_rows), table), table.num_found * self._kv.block_tokens)
        self._sequences.setdefault(seq.request_id, seq)
        self._standing.pop(seq.request_id, None)
        return True

    def unseat(self, seq: Sequence) -> None:
        """Take row and blocks back."""
        seat = seq.stand_up()
        heappush(self._free_rows, seat.row)
        self._kv.release(seat.table)
        self._standing[seq.request_id] = seq

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence; its id may come again."""
        if seq.seat is not None:
            self.unseat(seq)
        del self._sequences[seq.request_id], self._standing[seq.request_id]

    def check_integrity(self) -> None:
        """Compare rows, seats, statuses and blocks.

        Raises:
            AssertionError: they disagree, or a block still to be written is shared.
        """
        self._kv.check_integrity()
        seated = self.seated()
        rows = self._free_rows + [seq.seat.row for seq in seated if seq.seat is not None]
        assert sorted(rows) == list(range(self._max_rows)), "a row leaked or has two owners"
        for seq in self._sequences.values():
            has_seat = seq.status is not SequenceStatus.PREEMPTED
            assert (seq.seat is not None) == has_seat, f"{seq.request_id}: seat and status differ"
            assert (seq.ending is not None) == (seq.status is SequenceStatus.FINISHED), (
                f"{seq.request_id}: ending and status differ"
            )
        for seq in seated:
            assert seq.num_computed <= seq.num_scheduled, f"{seq.request_id}: computed the future"
            is_restored = seq.table.restore_key is None
            assert is_restored or seq.needs_start, f"{seq.request_id}: started from nothing"
            for block in seq.table.blocks[seq.num_scheduled // self._kv.block_tokens :]:
                assert self._kv.is_writable(block), (
                    f"{seq.request_id}: block {block} is shared and still to be written"
                )
        if not seated:
            stats = self._kv.stats()
            held = stats.total_blocks - stats.free_blocks - stats.cached_blocks
            assert held == 0, "blocks are held and nobody runs"
