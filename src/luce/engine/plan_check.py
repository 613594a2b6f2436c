"""Holds a plan against the engine's geometry before anything is touched."""

from __future__ import annotations

import math

from luce.engine.options import EngineInfo
from luce.engine.packed_ids import NotPacked, packed_ids
from luce.errors import InternalError, InvalidRequest
from luce.kv.spec import NULL_BLOCK, blocks_for
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan

_MANY = 256
"""Token ids that are compared faster by NumPy: 4,096 in a third of the time."""


class PlanCheck:
    """Refuses plans that would read or write where they must not.

    Args:
        resolved: the engine's geometry.
    """

    def __init__(self, resolved: EngineInfo) -> None:
        self._resolved = resolved
        self._started: set[int] = set()
        self._checked_blocks: dict[int, int] = {}

    def check(self, plan: StepPlan) -> None:
        """Accept a plan, and remember which rows are occupied.

        Raises:
            InternalError: the plan makes no sense.
            InvalidRequest: a new row's logit bias names a token the model does not have.
        """
        if not plan.items:
            raise InternalError(f"step {plan.step} has nothing to compute")
        started = self._started | {start.row for start in plan.starts}
        for start in plan.starts:
            self._check_start(plan.step, start)
        rows = [item.row for item in plan.items]
        used = set(rows)
        if len(used) != len(rows):
            raise InternalError(f"step {plan.step} has a row twice: {sorted(rows)}")
        if not used <= started:
            row = min(used - started)
            raise InternalError(f"step {plan.step} uses row {row}, which was not started")
        unusual = self._unusual(plan.items)
        num_chunks = sum(bool(item.token_ids) for item in unusual)
        if not all(item.token_ids for item in plan.items[len(rows) - num_chunks :]):
            raise InternalError(f"step {plan.step} has a decode row behind a prompt")
        for item in unusual:
            self._check_item(plan.step, item)
        self._started = started

    def _check_start(self, step: int, start: RowStart) -> None:
        if not 0 <= start.row < self._resolved.max_rows:
            raise InternalError(f"step {step} starts row {start.row} of {self._resolved.max_rows}")
        self._checked_blocks.pop(start.row, None)
        self._check_tokens(step, start.history)
        self._check_checkpoint(step, start.restore_checkpoint)
        if not 0 <= start.seed < 1 << 64:
            raise InternalError(f"step {step}: seed {start.seed} is not below 2**64")
        read = start.sampling.hidden
        if read is not None and not set(read.layers) <= set(range(self._resolved.num_layers)):
            raise InternalError(
                f"step {step} reads layers {read.layers} of {self._resolved.num_layers}"
            )
        for token_id, value in start.sampling.logit_bias.items():
            if not 0 <= token_id < self._resolved.vocab_size or not math.isfinite(value):
                raise InvalidRequest(
                    f"logit_bias {value} for token {token_id}: the model has tokens 0 to "
                    f"{self._resolved.vocab_size - 1}, and the bias must be a finite number",
                    param="logit_bias",
                )

    def _unusual(self, items: tuple[ScheduledSequence, ...]) -> list[ScheduledSequence]:
        """All but those that go on by a token in a table that was looked at: most of a step's."""
        checked, block_tokens = self._checked_blocks, self._resolved.block_tokens
        most = self._resolved.max_ctx
        return [
            item
            for item in items
            if item.token_ids
            or item.forced_token is not None
            or item.save_checkpoint is not None
            or checked.get(item.row) != len(item.block_table)
            or not 0 <= item.start < min(most, len(item.block_table) * block_tokens)
        ]

    def _check_item(self, step: int, item: ScheduledSequence) -> None:
        end = item.start + item.num_tokens
        if item.start < 0 or end > self._resolved.max_ctx:
            raise InternalError(
                f"step {step}, row {item.row}: positions {item.start} to {end} exceed the "
                f"context of {self._resolved.max_ctx}"
            )
        if len(item.block_table) < blocks_for(end, self._resolved.block_tokens):
            raise InternalError(
                f"step {step}, row {item.row}: {len(item.block_table)} blocks do not hold "
                f"{end} tokens"
            )
        # A decoding row's table only grows: what was checked of it is the same as before.
        known = 0 if item.token_ids else self._checked_blocks.get(item.row, 0)
        if known != len(item.block_table):
            self._check_table(step, item, item.block_table[known:] or item.block_table)
        if item.token_ids:
            self._check_tokens(step, item.token_ids)
        if item.forced_token is not None:
            self._check_tokens(step, (item.forced_token,))
        self._check_checkpoint(step, item.save_checkpoint)

    def _check_checkpoint(self, step: int, checkpoint: int | None) -> None:
        count = self._resolved.num_checkpoints
        if checkpoint is not None and not 0 <= checkpoint < count:
            raise InternalError(f"step {step} names checkpoint {checkpoint} of {count}")

    def _check_table(self, step: int, item: ScheduledSequence, new: tuple[int, ...]) -> None:
        """Look at what is new in a table."""
        if min(new) <= NULL_BLOCK or max(new) >= self._resolved.num_blocks:
            raise InternalError(
                f"step {step}, row {item.row}: a block id is outside 1 to "
                f"{self._resolved.num_blocks - 1}"
            )
        self._checked_blocks[item.row] = len(item.block_table)

    def _check_tokens(self, step: int, token_ids: tuple[int, ...]) -> None:
        least, most = _limits(token_ids)
        if least < 0 or most >= self._resolved.vocab_size:
            raise InternalError(
                f"step {step}: token ids must be in 0 to {self._resolved.vocab_size - 1}, and "
                "there must be some"
            )


def _limits(token_ids: tuple[int, ...]) -> tuple[int, int]:
    """The least and the largest; -1 of none, or beyond any vocabulary, or of what is no integer."""
    if not token_ids:
        return -1, -1
    if len(token_ids) < _MANY and all(type(each) is int for each in token_ids):
        return min(token_ids), max(token_ids)
    try:
        ids = packed_ids(token_ids)
    except NotPacked:
        return -1, -1
    return int(ids.min()), int(ids.max())
