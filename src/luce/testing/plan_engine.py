"""PlanEngine: executes StepPlans on token ids instead of tensors, and checks every one.

Its KV cache stores the token itself in each slot, so reading a context back through a block
table shows at once whether a block was shared, freed or overwritten when it must not be. Its
model is a hash of the whole context, so any such mistake also changes the ids that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from luce.kv.spec import NULL_BLOCK, blocks_for
from luce.protocol.sampling import SamplingParams
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
        token_id = next_token(context, sampling.seed or 0, index, vocab_size)
        if token_id in sampling.stop_token_ids:
            return context[len(prompt) :], "stop"
        context.append(token_id)
    return context[len(prompt) :], "length"


class BadPlan(AssertionError):
    """A plan that a real engine would compute wrongly."""


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise BadPlan(otherwise)


@dataclass(slots=True)
class _Row:
    start: RowStart
    history: list[int]


class PlanEngine:
    """Runs plans in order and raises `BadPlan` on one that makes no sense.

    Attributes:
        prefill_tokens: prompt tokens computed so far.
        max_prefill_tokens: most of them in one step.
    """

    def __init__(self, block_tokens: int, vocab_size: int = 50) -> None:
        self._block_tokens = block_tokens
        self._vocab_size = vocab_size
        self._slots: dict[int, int] = {}
        self._rows: dict[int, _Row] = {}
        self._last_step = 0
        self.prefill_tokens = 0
        self.max_prefill_tokens = 0

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
            self._rows[start.row] = _Row(start, list(start.history))
        num_prefill = sum(len(item.token_ids) for item in plan.items)
        self.prefill_tokens += num_prefill
        self.max_prefill_tokens = max(self.max_prefill_tokens, num_prefill)
        # All write before any reads, as in a forward pass.
        for item in plan.items:
            self._write(item)
        sampled = [self._read(item) for item in plan.items]
        return StepResult(
            plan.step, tuple(token_id for token_id in sampled if token_id is not None)
        )

    def _write(self, item: ScheduledSequence) -> None:
        history = self._rows[item.row].history
        end = item.start + item.num_tokens
        _require(NULL_BLOCK not in item.block_table, "the null block is written")
        _require(len(item.block_table) == blocks_for(end, self._block_tokens), "wrong table length")
        token_ids = item.token_ids or (history[-1],)
        _require(list(token_ids) == history[item.start : end], "tokens or position are wrong")
        _require(item.sample == (end == len(history)), "sampled too early or not at all")
        for position, token_id in enumerate(token_ids, start=item.start):
            self._slots[self._slot(item, position)] = token_id

    def _read(self, item: ScheduledSequence) -> int | None:
        row = self._rows[item.row]
        positions = range(item.start + item.num_tokens)
        context = [self._slots.get(self._slot(item, position), -1) for position in positions]
        _require(context == row.history[: len(context)], "the blocks hold another context")
        if not item.sample:
            return None
        num_output = len(row.history) - row.start.num_prompt_tokens
        _require(item.output_index == num_output, "the wrong random number would be drawn")
        token_id = next_token(context, row.start.seed, item.output_index, self._vocab_size)
        row.history.append(token_id)
        return token_id

    def _slot(self, item: ScheduledSequence, position: int) -> int:
        block = item.block_table[position // self._block_tokens]
        return block * self._block_tokens + position % self._block_tokens
