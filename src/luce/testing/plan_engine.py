"""PlanEngine: executes StepPlans on token ids instead of tensors, and checks every one.

Its KV cache stores the token itself in each slot, so reading a context back through a block
table shows at once whether a block was shared, freed or overwritten when it must not be. Its
model is a hash of the whole context, so any such mistake also changes the ids that follow.

With checkpoints it also plays a model with recurrent layers: a row's state is the fold of all
tokens it was stepped over, in order, and a checkpoint a copy of such a state. The simplest fold
that forgets nothing is the tuple of those tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from luce.kv.spec import NULL_BLOCK, blocks_for
from luce.protocol.sampling import (
    HiddenRead,
    HiddenStates,
    ReasoningBudget,
    SamplingParams,
    TokenLogprobs,
)
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan, StepResult


def next_token(context: Sequence[int], seed: int, output_index: int, vocab_size: int) -> int:
    """The double's whole model: one id from everything a real one's choice may depend on."""
    text = f"{seed}/{output_index}/{','.join(map(str, context))}"
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little") % vocab_size


def generate_alone(
    prompt: Sequence[int], sampling: SamplingParams, max_seq_tokens: int, vocab_size: int
) -> tuple[list[int], str]:
    """Ids and finish of a request that has the engine to itself; a stop token is left out."""
    context = list(prompt)
    max_tokens = min(sampling.max_tokens, max_seq_tokens - len(prompt))
    for index in range(max_tokens):
        forced = forced_after(context[len(prompt) :], sampling.reasoning)
        sampled = next_token(context, sampling.seed or 0, index, vocab_size)
        token_id = sampled if forced is None else forced
        if token_id in sampling.stop_token_ids:
            return context[len(prompt) :], "stop"
        context.append(token_id)
    return context[len(prompt) :], "length"


def forced_after(output: list[int], budget: ReasoningBudget | None) -> int | None:
    """What a budget puts behind an output that it has shaped so far; read from its beginning."""
    if budget is None:
        return None
    is_open, begun = budget.starts_open, 0
    for length in range(len(output) + 1):
        written = output[begun:length]
        if is_open and _is_tail(written, budget.close_ids):
            return None
        if not is_open and _is_tail(written, budget.open_ids):
            is_open, begun = True, length
            written = []
        if is_open and length >= budget.max_tokens:
            halves = range(len(budget.close_ids) - 1, 0, -1)
            half = next((n for n in halves if _is_tail(written, budget.close_ids[:n])), 0)
            way = budget.close_ids[half:] if half else budget.forced_ids
            num_forced = len(output) - length
            return way[num_forced] if num_forced < len(way) else None
    return None


def _is_tail(output: list[int], tail: tuple[int, ...]) -> bool:
    return bool(tail) and tuple(output[-len(tail) :]) == tail


class BadPlan(AssertionError):
    """A plan that a real engine would compute wrongly."""


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise BadPlan(otherwise)


@dataclass(slots=True)
class _Row:
    start: RowStart
    history: list[int]
    state: tuple[int, ...]

    @property
    def read(self) -> HiddenRead | None:
        """What is read of the prompt."""
        return self.start.sampling.hidden


class PlanEngine:
    """Runs plans in order and raises `BadPlan` on one that makes no sense.

    Args:
        block_tokens: tokens per block.
        vocab_size: ids are below this.
        num_checkpoints: slots for states; None: a model without states.

    Attributes:
        checkpoints: states by slot.
        prefill_tokens: prompt tokens computed so far.
        max_prefill_tokens: most of them in one step.
    """

    def __init__(
        self, block_tokens: int, vocab_size: int = 50, num_checkpoints: int | None = None
    ) -> None:
        self._block_tokens = block_tokens
        self._vocab_size = vocab_size
        self._slots: dict[int, int] = {}
        self._rows: dict[int, _Row] = {}
        self._num_checkpoints = num_checkpoints
        self.checkpoints: dict[int, tuple[int, ...]] = {}
        self._last_step = 0
        self.prefill_tokens = 0
        self.max_prefill_tokens = 0

    def block(self, block: int) -> tuple[int, ...]:
        """Tokens in a block; -1 where nothing was written."""
        first = block * self._block_tokens
        return tuple(self._slots.get(first + each, -1) for each in range(self._block_tokens))

    def put_block(self, block: int, token_ids: tuple[int, ...]) -> None:
        """Overwrite a block."""
        _require(block != NULL_BLOCK, "the null block is written")
        for each, token_id in enumerate(token_ids):
            self._slots[block * self._block_tokens + each] = token_id

    def run(self, plan: StepPlan) -> StepResult:
        """Execute a plan."""
        _require(plan.step == self._last_step + 1, "a step was left out")
        self._last_step = plan.step
        rows = [item.row for item in plan.items]
        _require(len(set(rows)) == len(rows), "a row is in a step twice")
        is_prefill = [bool(item.token_ids) for item in plan.items]
        _require(is_prefill == sorted(is_prefill), "decode rows come first")
        for start in plan.starts:
            _require(start.row in rows, "a row is started and not used")
            self._rows[start.row] = _Row(start, list(start.history), self._first_state(start))
        num_prefill = sum(len(item.token_ids) for item in plan.items)
        self.prefill_tokens += num_prefill
        self.max_prefill_tokens = max(self.max_prefill_tokens, num_prefill)
        # All write before any reads, as in a forward pass.
        for item in plan.items:
            self._write(item)
        for item in plan.items:
            self._fold(item)
        self._save(plan)
        read = [(item, self._read(item)) for item in plan.items]
        sampled = [(item, token_id) for item, token_id in read if token_id is not None]
        return StepResult(
            plan.step,
            tuple(token_id for _, token_id in sampled),
            tuple(self._logprobs(item, token_id) for item, token_id in sampled),
            tuple(self._hidden(item) for item in plan.items if self._is_read_out(item)),
        )

    def _write(self, item: ScheduledSequence) -> None:
        history = self._rows[item.row].history
        end = item.start + item.num_tokens
        _require(NULL_BLOCK not in item.block_table, "the null block is written")
        _require(len(item.block_table) == blocks_for(end, self._block_tokens), "wrong table length")
        token_ids = item.token_ids or (history[-1],)
        _require(list(token_ids) == history[item.start : end], "tokens or position are wrong")
        is_sampled = end == len(history) and self._rows[item.row].read is None
        _require(item.sample == is_sampled, "sampled too early or not at all")
        for position, token_id in enumerate(token_ids, start=item.start):
            self._slots[self._slot(item, position)] = token_id

    def _first_state(self, start: RowStart) -> tuple[int, ...]:
        if start.restore_checkpoint is None:
            return ()
        _require(start.restore_checkpoint in self.checkpoints, "nothing was saved there")
        return self.checkpoints[start.restore_checkpoint]

    def _fold(self, item: ScheduledSequence) -> None:
        if self._num_checkpoints is None:
            return
        row = self._rows[item.row]
        _require(len(row.state) == item.start, "the state is of another position")
        row.state += item.token_ids or (row.history[item.start],)
        _require(list(row.state) == row.history[: len(row.state)], "the state is of other tokens")

    def _save(self, plan: StepPlan) -> None:
        wanted = [(item.save_checkpoint, self._rows[item.row].state) for item in plan.items]
        saves = [(slot, state) for slot, state in wanted if slot is not None]
        _require(len(dict(saves)) == len(saves), "two states are saved to one checkpoint")
        for slot, state in saves:
            _require(slot in range(self._num_checkpoints or 0), "there is no such checkpoint")
            self.checkpoints[slot] = state

    def _read(self, item: ScheduledSequence) -> int | None:
        row = self._rows[item.row]
        positions = range(item.start + item.num_tokens)
        context = [self._slots.get(self._slot(item, position), -1) for position in positions]
        _require(context == row.history[: len(context)], "the blocks hold another context")
        if not item.sample:
            return None
        num_output = len(row.history) - row.start.num_prompt_tokens
        _require(item.output_index == num_output, "the wrong random number would be drawn")
        token_id = item.forced_token
        if token_id is None:
            token_id = next_token(context, row.start.seed, item.output_index, self._vocab_size)
        row.history.append(token_id)
        return token_id

    def _logprobs(self, item: ScheduledSequence, token_id: int) -> TokenLogprobs | None:
        asked = self._rows[item.row].start.sampling.logprobs is not None
        return TokenLogprobs(-float(token_id)) if asked else None

    def _is_read_out(self, item: ScheduledSequence) -> bool:
        row = self._rows[item.row]
        return row.read is not None and item.start + item.num_tokens == len(row.history)

    def _hidden(self, item: ScheduledSequence) -> tuple[int, HiddenStates]:
        """In place of states the whole context, which came through the blocks."""
        history = self._rows[item.row].history
        return item.row, HiddenStates(bytes(history))

    def _slot(self, item: ScheduledSequence, position: int) -> int:
        block = item.block_table[position // self._block_tokens]
        return block * self._block_tokens + position % self._block_tokens
