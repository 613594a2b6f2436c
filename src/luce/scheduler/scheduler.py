"""Continuous batching: who is admitted, what the next step computes, what its result means.

The worker's engine thread calls, in turn: `submit` and `cancel` for what came in, `plan`,
`apply` with what the engine made of the plan. `plan` may run one step ahead of `apply`, so
that the engine always has work; sequences then decode from a token the host has not seen yet,
and what a step computed for a sequence that turns out to have ended is dropped. It does not run
ahead over a sequence whose next token depends on the last one's value: one with a grammar, or
with reasoning that may have to be closed.

Invariants:
- a sequence is retired exactly once per admission, after no step under way uses its blocks;
- every decoder is in every step, unless it waits for blocks that a step under way gives back;
- with no step under way, `plan` returns one whenever a sequence lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from luce.kv.manager import KVManager
from luce.protocol.sampling import SamplingParams
from luce.scheduler.accounts import Accounts
from luce.scheduler.checkpoints import CheckpointPlanner
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.outcome import (
    AdmitResult,
    Admitted,
    Busy,
    NeverFits,
    Rejected,
    RetiredSequence,
    SchedulerStats,
    StepOutcome,
)
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan, StepResult
from luce.scheduler.prefill import PrefillPlanner
from luce.scheduler.reasoning import ReasoningWatch
from luce.scheduler.roster import Roster
from luce.scheduler.sequence import Ending, Sequence, SequenceStatus
from luce.scheduler.under_way import StepUnderWay

MAX_STEPS_UNDER_WAY = 2
"""A step that runs and the one planned behind it."""

_SEED_MASK = 2**64 - 1


class Scheduler:
    """Decides on plain numbers; the engine executes.

    Args:
        kv: the blocks; the scheduler is its only user.
        limits: rows, context, chunk.
        clock_ns: monotonic nanoseconds.
        entropy: a random integer for each request without a seed.
    """

    def __init__(
        self,
        kv: KVManager,
        limits: SchedulerLimits,
        clock_ns: Callable[[], int],
        entropy: Callable[[], int],
    ) -> None:
        self._kv = kv
        self._limits = limits
        self._clock_ns = clock_ns
        self._entropy = entropy
        self._roster = Roster(kv, limits.max_rows)
        self._accounts = Accounts(kv, self._roster, clock_ns)
        self._checkpoints = CheckpointPlanner(kv, limits.checkpoints)
        self._prefill = PrefillPlanner(kv, limits, self._checkpoints)
        self._under_way: deque[StepUnderWay] = deque()
        self._num_admitted = 0
        self._num_steps = 0
        self._num_preemptions = 0
        self._prompt_tokens = 0
        self._fresh_tokens = 0
        self._has_headroom = False
        """No decoder has advanced since all of them were given theirs."""

    @property
    def has_work(self) -> bool:
        """Whether a sequence lives: it runs, waits for blocks or for its step to be applied."""
        return not self._roster.is_empty

    @property
    def fills_step(self) -> bool:
        """Whether prompts that came since the last plan fill the next one: no need for more."""
        return self._fresh_tokens >= self._limits.chunk

    @property
    def max_seq_tokens(self) -> int:
        """Most tokens, prompt and output, one sequence may reach."""
        return min(self._limits.max_ctx, self._kv.capacity_tokens)

    def submit(
        self, request_id: str, prompt: tuple[int, ...], sampling: SamplingParams
    ) -> AdmitResult:
        """Admit a request or refuse it, at once and with nothing left behind.

        `sampling.max_tokens` is a cap, not a demand: it is lowered to the room that the
        context and the pool leave.
        """
        refusal = self._refuse(request_id, prompt, sampling)
        if refusal is not None:
            return refusal
        room = self.max_seq_tokens - len(prompt)
        if sampling.max_tokens > room:
            sampling = replace(sampling, max_tokens=room)
        seq = Sequence(
            request_id=request_id,
            order=self._num_admitted,
            token_ids=list(prompt),
            num_prompt_tokens=len(prompt),
            sampling=sampling,
            seed=(self._entropy() if sampling.seed is None else sampling.seed) & _SEED_MASK,
            admitted_ns=self._clock_ns(),
            watch=None if sampling.reasoning is None else ReasoningWatch(sampling.reasoning),
        )
        if not self._roster.seat(seq):
            return Busy("the free blocks do not hold the prompt and one block more")
        self._num_admitted += 1
        self._prompt_tokens += len(prompt)
        self._fresh_tokens += len(prompt) - seq.cached_tokens
        return Admitted(seq.cached_tokens)

    def cancel(self, request_id: str) -> None:
        """End a sequence with "cancelled"; ignored if it has ended or never was."""
        seq = self._roster.find(request_id)
        if seq is not None and seq.ending is None:
            self._accounts.finish(seq, Ending("cancelled"))

    def fail_all(self, error: str, detail: str) -> None:
        """The engine failed: forget the steps under way and end every sequence with "error".

        The results of the forgotten steps must not be applied any more.
        """
        self._forget_steps()
        for seq in self._roster.all():
            if seq.ending is None:
                self._accounts.finish(seq, Ending("error", error, detail))

    def fail_largest(self, plan: StepPlan, error: str, detail: str) -> bool:
        """The engine had no memory for this step: end who has most prompt tokens in it.

        The others under way are computed anew; what is said of results in `fail_all` holds.

        Returns:
            False, with nothing changed: it is a step of decoders alone, and none is to blame.
        """
        step = next(step for step in self._under_way if step.plan is plan)
        largest = step.largest_prefill
        if largest is None:
            return False
        members = self._forget_steps()
        if largest.ending is None:
            self._accounts.finish(largest, Ending("error", error, detail))
        for seq in members:
            if seq.status in (SequenceStatus.PREFILL, SequenceStatus.DECODE):
                self._preempt(seq)
        return True

    def _forget_steps(self) -> list[Sequence]:
        """Let those go that wait for a step's end. Returns whom the steps were for, each once."""
        members = [seq for seq in self._roster.all() if seq.num_in_flight]
        self._under_way.clear()
        for seq in members:
            seq.num_in_flight = seq.num_unresolved = 0
            self._accounts.leave_if_idle(seq)
        return members

    def empty_cache(self) -> int:
        """The blocks' memory goes: no sequence may live. Returns prefixes that are lost."""
        assert not self.has_work, "a sequence lives"
        return self._kv.empty()

    def plan(self) -> StepPlan | None:
        """Decide the next step; None if it must wait for the next `apply`.

        All decoders come first, then at most `chunk` prompt tokens. At most one earlier plan
        may still wait for its `apply`.
        """
        assert len(self._under_way) < MAX_STEPS_UNDER_WAY, "apply a step before planning on"
        self._fresh_tokens = 0
        decoding = self._roster.decoding()
        if any(seq.watch is not None and seq.awaits_itself for seq in decoding):
            return None
        decoders = self._decoders_with_room(decoding)
        self._resume()
        prefills = self._prefill.plan(self._roster.seated())
        if not decoders and not prefills:
            assert self._under_way or self._roster.is_empty, "sequences live and none can go on"
            return None
        self._has_headroom = False
        starts = self._start_rows(seq for seq, _ in prefills)
        items = self._schedule_tokens(decoders)
        for seq, num_tokens in prefills:
            save = self._checkpoints.reserve(seq, num_tokens)
            items.append(seq.schedule(num_tokens, self._kv.block_tokens, save))
        self._num_steps += 1
        plan = StepPlan(self._num_steps, starts, tuple(items))
        members = (*decoders, *(seq for seq, _ in prefills))
        self._under_way.append(StepUnderWay(plan, members))
        return plan

    def apply(self, plan: StepPlan, result: StepResult) -> StepOutcome:
        """Take the sampled tokens of the oldest plan under way.

        Returns:
            What each sequence gained, and all sequences retired since they were last asked for.
        """
        step = self._under_way.popleft()
        assert step.plan is plan, "steps are applied in the order they were planned"
        assert result.step == plan.step, f"result of step {result.step} for step {plan.step}"
        deltas = self._accounts.settle(step, result)
        return StepOutcome(deltas, self.take_retired())

    def take_retired(self) -> tuple[RetiredSequence, ...]:
        """Sequences retired since the last call or `apply`, each once."""
        return self._accounts.take_retired()

    def stats(self) -> SchedulerStats:
        """Gauges and counters as of now."""
        return SchedulerStats(
            running=len(self._roster.seated()),
            preempted=len(self._roster.preempted()),
            steps=self._num_steps,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._accounts.generated_tokens,
            preemptions=self._num_preemptions,
            kv=self._kv.stats(),
        )

    def check_integrity(self) -> None:
        """Compare sequences, rows, block tables, reference counts and the prefix cache.

        Raises:
            AssertionError: an invariant is broken; the worker must not go on.
        """
        self._roster.check_integrity()
        members = [seq for step in self._under_way for seq in step.sequences]
        for seq in self._roster.all():
            assert members.count(seq) == seq.num_in_flight, f"{seq.request_id}: steps miscounted"

    def _refuse(
        self, request_id: str, prompt: tuple[int, ...], sampling: SamplingParams
    ) -> AdmitResult | None:
        """Everything that stands against a request before blocks are asked for."""
        if not prompt:
            return Rejected("the prompt is empty; send at least one token")
        if sampling.max_tokens < 1:
            return Rejected(f"max_tokens is {sampling.max_tokens}; it must be at least 1")
        if self._roster.find(request_id) is not None:
            return Rejected(f"request id {request_id!r} is in use; choose another")
        most = self.max_seq_tokens - 1
        if len(prompt) > most:
            return NeverFits(
                f"the prompt has {len(prompt)} tokens and this model takes at most {most} "
                f"(context {self._limits.max_ctx}, KV pool {self._kv.capacity_tokens} tokens)",
                prompt_tokens=len(prompt),
                max_prompt_tokens=most,
            )
        if self._roster.preempted():
            return Busy("a preempted sequence waits for blocks")
        if not self._roster.has_free_row:
            return Busy(f"all {self._limits.max_rows} rows are taken")
        if not self._give_headroom():
            return Busy("the free blocks are needed by the sequences that run")
        return None

    def _start_rows(self, sequences: Iterable[Sequence]) -> tuple[RowStart, ...]:
        fresh = [
            seq.start_row(self._kv.states.start(seq.table)) for seq in sequences if seq.needs_start
        ]
        return tuple(start for start in fresh if start is not None)

    def _schedule_tokens(self, decoders: list[Sequence]) -> list[ScheduledSequence]:
        block_tokens = self._kv.block_tokens
        if not self._kv.states.is_used:
            return [seq.schedule_token(block_tokens) for seq in decoders]
        reserve = self._checkpoints.reserve
        return [seq.schedule_token(block_tokens, reserve(seq, 1)) for seq in decoders]

    def _decoders_with_room(self, decoding: list[Sequence]) -> list[Sequence]:
        """Those that want a token and have a block for it, in the order given, oldest first."""
        block_tokens, decode = self._kv.block_tokens, SequenceStatus.DECODE
        return [
            seq
            for seq in decoding
            # An older one may have preempted it a moment ago, so its status counts again.
            if seq.num_scheduled < seq.limit_tokens
            and seq.status is decode
            and (seq.num_scheduled < len(seq.blocks) * block_tokens or self._make_room(seq))
        ]

    def _make_room(self, seq: Sequence) -> bool:
        """Grow by one token, preempting the newest while blocks lack; False: not in this step."""
        while not self._kv.grow(seq.table, seq.num_scheduled + 1):
            if self._roster.is_anyone_leaving():
                return False
            victim = self._roster.newest_developing()
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self._num_preemptions += 1
        seq.was_preempted = True
        seq.move_to(SequenceStatus.YIELDING)
        self._accounts.leave_if_idle(seq)

    def _resume(self) -> None:
        """Seat preempted sequences again, oldest first, as far as they fit."""
        for seq in self._roster.preempted():
            if not (self._give_headroom() and self._roster.seat(seq)):
                return
            seq.move_to(SequenceStatus.PREFILL)

    def _give_headroom(self) -> bool:
        """To every decoder, before a newcomer gets anything; again once they have advanced."""
        self._has_headroom = self._has_headroom or self._roster.top_up()
        return self._has_headroom
