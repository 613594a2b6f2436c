"""Runs one step: input → hidden states → logits → tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from luce.engine.cache_memory import CacheMemory
from luce.engine.context import ForwardContext
from luce.engine.extras import SampledTokens, StepExtras
from luce.engine.hidden_taps import StepTap
from luce.engine.inputs import InputBatch
from luce.engine.kv_tensors import KVTensors
from luce.engine.models.base import Model
from luce.engine.ops.attention import PagedAttention
from luce.engine.ops.gated_delta import StateBatch
from luce.engine.ops.qkv import TokenPlaces
from luce.engine.ops.step_tables import StepTables
from luce.engine.recorded import RecordedModel
from luce.engine.rows import RowState
from luce.engine.state_tensors import StateTensors
from luce.scheduler.plan import RowStart, ScheduledSequence


@dataclass(frozen=True, slots=True)
class Runner:
    """A model with its cache, ready to run batches eagerly.

    Attributes:
        memory: where cache and states lie, if they have addresses of their own.
    """

    model: Model
    kv: KVTensors
    attention: PagedAttention
    states: StateTensors | None = None
    memory: CacheMemory | None = None

    def logits(self, batch: InputBatch, tap: StepTap | None = None) -> torch.Tensor | None:
        """`raw_logits` as float32."""
        raw = self.raw_logits(batch, tap)
        return None if raw is None else raw.float()

    def raw_logits(self, batch: InputBatch, tap: StepTap | None = None) -> torch.Tensor | None:
        """[sampled, V] of the tokens whose logits are wanted, None if there are none.

        They are in the type the model computes them in.

        Args:
            batch: the step.
            tap: is shown the residual stream behind every block.
        """
        ctx = self._context(batch, tap)
        hidden = self.model.forward(batch.input_ids, ctx)
        if not batch.sampled_rows:
            return None
        if batch.logits_index is not None:
            hidden = hidden.index_select(0, batch.logits_index)
        if ctx.leaves_norm:
            return self.model.normed_logits(hidden)
        return self.model.compute_logits(hidden)

    @property
    def step_tables(self) -> StepTables | None:
        """What the begin of a step may look up itself; None: nothing."""
        return self.model.step_tables

    def prepare(self, batch: InputBatch) -> None:
        """Have recorded what is recorded, before a step needs it; computes nothing else."""
        if isinstance(self.model, RecordedModel):
            self.model.prepare(len(batch.input_ids), self._context(batch, None))

    def _context(self, batch: InputBatch, tap: StepTap | None) -> ForwardContext:
        rotary = batch.rotary
        if rotary is None:
            rotary = self.model.rotary(batch.positions)
        return ForwardContext(
            places=TokenPlaces(rotary, batch.slot_mapping),
            attend=self.attention.prepare(batch.attention),
            kv_layers=self.kv.layers,
            states=StateBatch(batch.rows, batch.attention.query_starts, batch.attention.tensors),
            state_layers=() if self.states is None else self.states.layers,
            tap=tap,
            embedded=batch.embedded,
            leaves_norm=batch.attention.tensors is not None,
        )

    def start_states(self, starts: Sequence[RowStart]) -> None:
        """Give new rows their first recurrent state, where the model has such."""
        if self.states is not None:
            self.states.start(starts)

    def save_states(self, items: Sequence[ScheduledSequence]) -> None:
        """Copy to checkpoints the recurrent states that are to be kept, as of this step."""
        if self.states is not None:
            self.states.save(items)

    def sample(
        self, batch: InputBatch, rows: RowState, extras: StepExtras
    ) -> Callable[[], SampledTokens]:
        """Sample the rows that are; returns a function that gives their tokens."""
        logits = self.logits(batch, extras.tap)
        if logits is None:
            return SampledTokens
        extras.look_at(logits)
        ids = rows.sample(logits, batch.sampled_rows, batch.output_indices, extras.masks())
        return extras.begin_readback(ids)
