"""Runs one step: input → hidden states → logits → tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.context import ForwardContext
from luce.engine.inputs import InputBatch
from luce.engine.kv_tensors import KVTensors
from luce.engine.models.base import Model
from luce.engine.ops.attention import PagedAttention
from luce.engine.ops.qkv import TokenPlaces
from luce.engine.rows import RowState


@dataclass(frozen=True, slots=True)
class Runner:
    """A model with its cache, ready to run batches eagerly."""

    model: Model
    kv: KVTensors
    attention: PagedAttention

    def logits(self, batch: InputBatch) -> torch.Tensor | None:
        """f32 [sampled, V] of the tokens whose logits are wanted, None if there are none."""
        context = ForwardContext(
            places=TokenPlaces(self.model.rotary(batch.positions), batch.slot_mapping),
            attend=self.attention.prepare(batch.attention),
            kv_layers=self.kv.layers,
        )
        hidden = self.model.forward(batch.input_ids, context)
        if not batch.sampled_rows:
            return None
        if batch.logits_index is not None:
            hidden = hidden.index_select(0, batch.logits_index)
        return self.model.compute_logits(hidden)

    def sample(self, batch: InputBatch, rows: RowState) -> torch.Tensor | None:
        """i64 [sampled] tokens, None if no row is sampled in this step."""
        logits = self.logits(batch)
        if logits is None:
            return None
        return rows.sample(logits, batch.sampled_rows, batch.output_indices)
