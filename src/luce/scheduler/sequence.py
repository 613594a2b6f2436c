"""One sequence: its tokens, how far they are computed, where it stands in its life."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from luce.kv.block_table import BlockTable
from luce.kv.spec import blocks_for
from luce.protocol.sampling import SamplingParams
from luce.scheduler.outcome import FinishReason
from luce.scheduler.plan import RowStart, ScheduledSequence
from luce.scheduler.reasoning import ReasoningWatch


class SequenceStatus(Enum):
    """Where a sequence stands. It holds a row and blocks in all but PREEMPTED and RETIRED."""

    PREFILL = "prefill"
    """Tokens it knows are still to be computed."""
    DECODE = "decode"
    """One token a step."""
    YIELDING = "yielding"
    """Chosen for preemption; keeps its blocks until its step under way is applied."""
    PREEMPTED = "preempted"
    """Waits for blocks to be computed anew."""
    FINISHED = "finished"
    """Its end is known; keeps its blocks until its step under way is applied."""
    RETIRED = "retired"
    """Gone."""


_LEGAL_MOVES: dict[SequenceStatus, frozenset[SequenceStatus]] = {
    SequenceStatus.PREFILL: frozenset(
        {SequenceStatus.DECODE, SequenceStatus.YIELDING, SequenceStatus.FINISHED}
    ),
    SequenceStatus.DECODE: frozenset({SequenceStatus.YIELDING, SequenceStatus.FINISHED}),
    SequenceStatus.YIELDING: frozenset({SequenceStatus.PREEMPTED, SequenceStatus.FINISHED}),
    SequenceStatus.PREEMPTED: frozenset({SequenceStatus.PREFILL, SequenceStatus.FINISHED}),
    SequenceStatus.FINISHED: frozenset({SequenceStatus.RETIRED}),
    SequenceStatus.RETIRED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Seat:
    """What a sequence holds while it runs."""

    row: int
    table: BlockTable


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ended; `error` and `detail` are set if it failed."""

    finish: FinishReason
    error: str = ""
    detail: str = ""


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one admitted request.

    Positions: tokens `0 .. num_computed-1` are in the tensors for good; up to
    `num_scheduled-1` they are computed by steps under way.

    Attributes:
        request_id: the client's handle.
        order: rank of its admission; older is smaller.
        token_ids: prompt and sampled tokens.
        num_prompt_tokens: how many of them are prompt.
        sampling: parameters, `max_tokens` lowered to the room there is.
        seed: resolved seed.
        admitted_ns: when it was admitted.
        seat: row and blocks while it has them.
        num_unresolved: sampled tokens of steps under way.
        num_in_flight: steps under way that it takes part in.
        cached_tokens: prompt tokens it did not have to compute.
        needs_start: its row does not know it yet.
        marks: positions of its prefill where its recurrent state is to be saved, ascending; None
            until they are chosen.
        was_preempted: it lost its blocks at least once.
        watch: follows its reasoning; None if that has no budget.
        is_broken: its logits were no numbers, so what it computed is for nobody else to find.
        ending: set when it has ended.
        blocks: those of its table; empty while it has none.
        limit_tokens: most tokens that ever need a place in the KV cache; the last one sampled
            does not.
        is_read: its prompt is read instead of answered.
    """

    request_id: str
    order: int
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    admitted_ns: int
    status: SequenceStatus = SequenceStatus.PREFILL
    seat: Seat | None = None
    num_computed: int = 0
    num_scheduled: int = 0
    num_unresolved: int = 0
    num_in_flight: int = 0
    cached_tokens: int = 0
    needs_start: bool = True
    marks: list[int] | None = None
    was_preempted: bool = False
    watch: ReasoningWatch | None = None
    is_broken: bool = False
    ending: Ending | None = None
    first_token_ns: int = 0
    last_token_ns: int = 0
    blocks: list[int] = field(init=False, default_factory=list)
    limit_tokens: int = field(init=False)
    is_read: bool = field(init=False)
    _sent_table: tuple[int, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self.limit_tokens = self.num_prompt_tokens + self.sampling.max_tokens - 1
        self.is_read = self.sampling.hidden is not None

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Sampled tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_shared(self) -> bool:
        """Whether others may find what it computes."""
        if self.is_broken:
            return False
        hidden = self.sampling.hidden
        return hidden is None or hidden.keeps_prefix

    @property
    def wants_token(self) -> bool:
        """Whether its output, with what is under way, is short of `max_tokens`."""
        return self.num_output_tokens + self.num_unresolved < self.sampling.max_tokens

    @property
    def awaits_itself(self) -> bool:
        """Whether its next step cannot be planned before the token under way is known.

        That is so with open reasoning that has reached its budget. A grammar waits in the engine.
        """
        is_going_on = self.status is SequenceStatus.DECODE and self.wants_token
        if not self.num_unresolved or not is_going_on or self.watch is None:
            return False
        return self.watch.needs_past(self.num_output_tokens + self.num_unresolved)

    @property
    def table(self) -> BlockTable:
        """Its blocks; it must be seated."""
        assert self.seat is not None, f"{self.request_id} holds no blocks"
        return self.seat.table

    def move_to(self, status: SequenceStatus) -> None:
        """Change the status along the table of legal moves."""
        assert status in _LEGAL_MOVES[self.status], (
            f"{self.request_id}: {self.status.value} to {status.value} is no legal move"
        )
        self.status = status

    def sit(self, seat: Seat, found_tokens: int) -> None:
        """Take a row and blocks whose first `found_tokens` tokens are computed already."""
        assert self.seat is None, f"{self.request_id} has a seat"
        self.seat = seat
        self.blocks = seat.table.blocks
        self._sent_table = ()
        self.needs_start = True
        self.marks = None
        self.num_computed = self.num_scheduled = found_tokens
        self._count_cached(found_tokens)

    def skip(self, num_tokens: int) -> None:
        """Tokens from `num_scheduled` on turned out to be computed by another sequence."""
        self.num_scheduled += num_tokens
        self._count_cached(num_tokens)

    def stand_up(self) -> Seat:
        """Give up row and blocks; no step under way may use them."""
        assert self.seat is not None, f"{self.request_id} has no seat"
        assert self.num_in_flight == 0, f"{self.request_id} is still under way"
        seat, self.seat, self.blocks = self.seat, None, []
        self.num_computed = self.num_scheduled = 0
        return seat

    def start_row(self, restore_checkpoint: int | None = None) -> RowStart | None:
        """The introduction of this sequence to its row, once per seat.

        Args:
            restore_checkpoint: what its row's recurrent state starts from.
        """
        if not self.needs_start:
            return None
        assert self.seat is not None, f"{self.request_id} has no seat"
        self.needs_start = False
        return RowStart(
            row=self.seat.row,
            sampling=self.sampling,
            seed=self.seed,
            history=tuple(self.token_ids),
            num_prompt_tokens=self.num_prompt_tokens,
            restore_checkpoint=restore_checkpoint,
        )

    def schedule(
        self, num_tokens: int, block_tokens: int, save_checkpoint: int | None = None
    ) -> ScheduledSequence:
        """Put the next `num_tokens` tokens of a prefill into a step.

        The one that completes it samples, and makes a decoder of the sequence.

        Args:
            num_tokens: at least one.
            block_tokens: tokens of a block.
            save_checkpoint: where its recurrent state is saved after the step.
        """
        assert self.seat is not None, f"{self.request_id} has no seat"
        assert self.status is SequenceStatus.PREFILL, f"{self.request_id} is in no prefill"
        start, end = self.num_scheduled, self.num_scheduled + num_tokens
        sample = not self.is_read and end == self.num_tokens
        item = ScheduledSequence(
            row=self.seat.row,
            start=start,
            token_ids=tuple(self.token_ids[start:end]),
            block_table=tuple(self.blocks[: blocks_for(end, block_tokens)]),
            sample=sample,
            output_index=end - self.num_prompt_tokens if sample else 0,
            forced_token=self.watch.forced_token() if sample and self.watch is not None else None,
            save_checkpoint=save_checkpoint,
        )
        self.num_scheduled = end
        self.num_in_flight += 1
        if sample:
            self.num_unresolved += 1
            self.move_to(SequenceStatus.DECODE)
        return item

    def schedule_token(
        self, block_tokens: int, save_checkpoint: int | None = None
    ) -> ScheduledSequence:
        """Put a decoder's next token into a step; see `schedule`."""
        assert self.seat is not None, f"{self.request_id} has no seat"
        start = self.num_scheduled
        num_blocks = start // block_tokens + 1
        # The table of a decoder only grows, and of its steps only one in `block_tokens` sees it.
        if len(self._sent_table) != num_blocks:
            self._sent_table = tuple(self.blocks[:num_blocks])
        self.num_scheduled = end = start + 1
        self.num_in_flight += 1
        self.num_unresolved += 1
        return ScheduledSequence(
            self.seat.row,
            start,
            (),
            self._sent_table,
            True,
            end - self.num_prompt_tokens,
            None if self.watch is None else self.watch.forced_token(),
            save_checkpoint,
        )

    def accept(self, token_id: int, now_ns: int) -> None:
        """Take a sampled token; sets `ending` when it is the last one."""
        self.token_ids.append(token_id)
        self.first_token_ns = self.first_token_ns or now_ns
        self.last_token_ns = now_ns
        if self.watch is not None:
            self.watch.observe(token_id)
        if token_id in self.sampling.stop_token_ids:
            self.ending = Ending("stop")
        elif len(self.token_ids) > self.limit_tokens or (self.watch and self.watch.is_stuck):
            self.ending = Ending("length")

    def _count_cached(self, num_tokens: int) -> None:
        # After a preemption it finds its own work in the cache, which nobody saved it.
        if not self.was_preempted:
            self.cached_tokens += num_tokens
