"""A model whose forward pass is recorded once and then run as one native call."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from luce.engine.context import ForwardContext
from luce.engine.models.base import Model
from luce.engine.native.tape import Program, Tape
from luce.engine.ops.gated_delta import NO_STATES
from luce.engine.ops.qkv import TokenPlaces
from luce.engine.ops.step_tables import StepTables

_log = logging.getLogger(__name__)


class RecordedModel:
    """`models.base.Model` around another.

    The first recording is trusted only if it gives, on other tokens, exactly what the model itself
    gives: a model with a part that is not native would leave that part out. Later ones are of the
    same operations, with other addresses.

    Args:
        model: what is recorded.
        tape: that of all its operations.
        capacity: tokens of the largest usual step; larger ones record anew.
    """

    def __init__(self, model: Model, tape: Tape, capacity: int) -> None:
        self._model = model
        self._tape = tape
        self._capacity = capacity
        self._recorded: tuple[Program, torch.Tensor] | None = None
        self._is_native = True

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._model.vocab_size

    @property
    def nbytes(self) -> int:
        """Memory of the parameters and tables."""
        return self._model.nbytes

    @property
    def expert_loads(self) -> Sequence[torch.Tensor]:
        """As the model's."""
        return self._model.expert_loads

    def rotary(self, positions: torch.Tensor) -> torch.Tensor:
        """As the model's."""
        return self._model.rotary(positions)

    @property
    def step_tables(self) -> StepTables:
        """As the model's."""
        return self._model.step_tables

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As the model's."""
        return self._model.compute_logits(hidden)

    def normed_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As the model's."""
        return self._model.normed_logits(hidden)

    def forward(self, input_ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """As the model's; valid until the next pass."""
        self.prepare(len(input_ids), ctx)
        if self._recorded is None or ctx.tap is not None:
            return self._model.forward(input_ids, ctx)
        return self._play(input_ids, ctx)

    def prepare(self, tokens: int, ctx: ForwardContext) -> None:
        """Have a recording that steps of so many tokens can be played from, if there can be one."""
        if self._is_native and (self._recorded is None or tokens > self._capacity):
            self._record(tokens, ctx)

    def _play(self, input_ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        assert self._recorded is not None
        program, hidden = self._recorded
        step = self._tape.step
        step.num_tokens = len(input_ids)
        step.input_ids = input_ids.data_ptr()
        step.rotary = ctx.places.rotary.data_ptr()
        step.slots = ctx.places.slot_mapping.data_ptr()
        self._tape.set_sequences(ctx.states.slots, ctx.states.query_starts)
        self._tape.play(program)
        return hidden[: len(input_ids)]

    def _record(self, tokens: int, ctx: ForwardContext) -> None:
        self._capacity = max(self._capacity, tokens)
        # What is not native runs while it is recorded: it shall find no states to advance.
        places = _blank(ctx.places, self._capacity)
        blank = replace(ctx, places=places, states=NO_STATES, tap=None)
        ids = torch.zeros(self._capacity, dtype=torch.int32)
        self._recorded = self._tape.record(lambda: self._model.forward(ids, blank))
        is_good = self._recorded is not None
        if is_good and (self._tape.is_proven or self._is_faithful(tokens, ctx)):
            self._tape.is_proven = True
            return
        _log.debug("the forward pass is not native throughout and is not recorded")
        self._recorded, self._is_native = None, False

    def _is_faithful(self, tokens: int, ctx: ForwardContext) -> bool:
        others = torch.arange(1, tokens + 1, dtype=torch.int32) % self.vocab_size
        ctx = replace(ctx, tap=None)
        before = _states(ctx)
        # In warming up many tokens are written to one place of the null block.
        with self._tape.library.one_thread():
            played = (self._play(others, ctx).clone(), *_states(ctx))
            _put_back(ctx, before)
            computed = (self._model.forward(others, ctx), *_states(ctx))
        # The step itself is still to come.
        _put_back(ctx, before)
        return all(map(torch.equal, played, computed))


def _stores(ctx: ForwardContext) -> Iterator[torch.Tensor]:
    for layer in ctx.state_layers:
        yield layer.conv
        yield layer.recurrent


def _states(ctx: ForwardContext) -> list[torch.Tensor]:
    """Copies of what the step's sequences have in each recurrent layer."""
    slots = torch.tensor(ctx.states.slots, dtype=torch.int64)
    return [store[slots] for store in _stores(ctx)]


def _put_back(ctx: ForwardContext, states: list[torch.Tensor]) -> None:
    slots = torch.tensor(ctx.states.slots, dtype=torch.int64)
    for store, values in zip(_stores(ctx), states, strict=True):
        store[slots] = values


def _blank(places: TokenPlaces, tokens: int) -> TokenPlaces:
    """Places of the same kind for so many tokens; a recording only asks for their shape."""
    # PyTorch would wake its threads to fill them, which takes longer than the recording.
    rotary = np.zeros((tokens, *places.rotary.shape[1:]), np.float32)
    slots = np.zeros(tokens, np.int64)
    return TokenPlaces(
        torch.from_numpy(rotary).to(places.rotary.dtype),
        torch.from_numpy(slots).to(places.slot_mapping.dtype),
    )
