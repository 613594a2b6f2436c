"""Where sequences of a model with recurrent layers leave checkpoints of their state.

A prompt is marked at positions where its prefill stops for a step, so that the state is exactly
there when it is saved: at its end, where it parted from another prompt, and every so many tokens.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence

from luce.kv.manager import KVManager
from luce.scheduler.limits import CheckpointPolicy
from luce.scheduler.sequence import Sequence as TokenSequence
from luce.scheduler.sequence import SequenceStatus


class CheckpointPlanner:
    """Marks prompts, and finds slots for the states that a step leaves at a mark.

    Args:
        kv: holds the slots.
        policy: how far apart marks are.
    """

    def __init__(self, kv: KVManager, policy: CheckpointPolicy) -> None:
        self._kv = kv
        self._policy = policy

    def mark(self, waiting: Iterable[TokenSequence]) -> None:
        """Mark the prompts that have no marks yet, and the others where the new ones part.

        Args:
            waiting: all sequences in their prefill, by order of admission.
        """
        marked: list[TokenSequence] = []
        unmarked: list[TokenSequence] = []
        for seq in waiting:
            (unmarked if seq.marks is None else marked).append(seq)
        for seq in unmarked:
            seq.marks = []
            if not seq.is_shared:
                continue
            for position in self._own_positions(seq):
                self._add(seq, position)
            for other in marked:
                shared = self._shared_tokens(seq, other)
                self._add(seq, shared)
                self._add(other, shared)
            marked.append(seq)

    def tokens_to_mark(self, seq: TokenSequence) -> int:
        """Tokens from its position to its next mark, or to the end of what it knows."""
        upcoming = self._upcoming(seq)
        return (upcoming[0] if upcoming else seq.num_tokens) - seq.num_scheduled

    def reserve(self, seq: TokenSequence, num_tokens: int) -> int | None:
        """A slot for the state behind the sequence's next `num_tokens` tokens, if one is wanted.

        Called once all starts of the plan are known.
        """
        end = seq.num_scheduled + num_tokens
        if seq.status is SequenceStatus.DECODE:
            return self._reserve_behind_output(seq, end)
        is_wanted = seq.marks is not None and end in seq.marks
        return self._kv.states.reserve(seq.table, end) if is_wanted else None

    def _reserve_behind_output(self, seq: TokenSequence, end: int) -> int | None:
        """Now and then for good, and at each block for as long as it is the last.

        Any token may be an answer's last, and the next turn of a chat goes on from there.
        """
        states = self._kv.states
        if not states.is_used or end % self._kv.block_tokens:
            return None
        if end % self._interval(end) == 0:
            return states.reserve(seq.table, end)
        return states.follow(seq.table, end)

    def _own_positions(self, seq: TokenSequence) -> list[int]:
        """Where a prompt wants checkpoints for its own sake, ascending."""
        interval = self._interval(seq.num_tokens)
        positions = set(range(interval, seq.num_tokens, interval))
        positions.add(self._floor(seq.num_tokens - self._policy.opening_tokens))
        # Another prompt had the same blocks and went on differently: a third may come.
        positions.add(seq.table.num_matched * self._kv.block_tokens)
        return sorted(positions)

    def _interval(self, num_tokens: int) -> int:
        """Tokens between checkpoints of a sequence this long.

        Doubled until one sequence takes at most a quarter of the slots; a multiple of the
        shortest, so that long and short prompts mark the same positions.
        """
        block_tokens = self._kv.block_tokens
        interval = -(-self._policy.interval_tokens // block_tokens) * block_tokens
        most = max(1, self._kv.states.num_slots // 4)
        while num_tokens // interval > most:
            interval *= 2
        return interval

    def _shared_tokens(self, seq: TokenSequence, other: TokenSequence) -> int:
        """Tokens of the full blocks that two prompts have in common and both can go on behind."""
        keys, others = seq.table.keys, other.table.keys
        low, high = 0, min(len(keys), len(others))
        # A key stands for all tokens up to it: equal ones come before all different ones.
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if keys[middle - 1] == others[middle - 1] else (low, middle - 1)
            )
        shorter = min(seq.num_tokens, other.num_tokens)
        return min(low * self._kv.block_tokens, self._floor(shorter - 1))

    def _add(self, seq: TokenSequence, position: int) -> None:
        """Mark a position if it is still to come and worth it; the last token is never behind."""
        assert seq.marks is not None, "marked before its own positions"
        position = min(position, self._floor(seq.num_tokens - 1))
        index = bisect_right(seq.marks, position)
        before = seq.marks[index - 1] if index else seq.table.num_found * self._kv.block_tokens
        if position > seq.num_scheduled and position - before >= self._policy.min_gain_tokens:
            insort(seq.marks, position)

    def _upcoming(self, seq: TokenSequence) -> list[int]:
        marks = seq.marks or []
        return marks[bisect_right(marks, seq.num_scheduled) :]

    def _floor(self, num_tokens: int) -> int:
        return num_tokens // self._kv.block_tokens * self._kv.block_tokens


class ComingCheckpoints:
    """Checkpoints that sequences will leave, for others with the same prefix to wait for.

    Args:
        block_tokens: tokens of a block.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._keys: dict[int, set[bytes]] = {}

    def add_saves(self, seq: TokenSequence) -> None:
        """Those of its steps under way."""
        if not seq.is_broken:
            self._add(seq, seq.table.saving)

    def add_marks(self, seq: TokenSequence) -> None:
        """Those at the marks before it; the sequence must not be one that waits itself."""
        self._add(seq, [mark for mark in seq.marks or () if mark > seq.num_scheduled])

    def can_help(self, seq: TokenSequence) -> bool:
        """Whether one of them is on the way of a sequence that has not started yet."""
        first = seq.num_scheduled // self._block_tokens
        last = (seq.num_tokens - 1) // self._block_tokens
        keys = seq.table.keys
        return any(
            first <= index < min(last, len(keys)) and keys[index] in there
            for index, there in self._keys.items()
        )

    def _add(self, seq: TokenSequence, positions: Iterable[int]) -> None:
        keys: Sequence[bytes] = seq.table.keys
        for position in positions:
            index = position // self._block_tokens - 1
            if index < len(keys):
                self._keys.setdefault(index, set()).add(keys[index])
