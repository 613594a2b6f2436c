"""A model whose forward pass is recorded once and then run as one native call."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from luce.engine.context import ForwardContext
from luce.engine.models.base import Model
from luce.engine.native.tape import Program, Tape
from luce.engine.ops.qkv import TokenPlaces

_log = logging.getLogger(__name__)


class RecordedModel:
    """`models.base.Model` around another.

    The recording is trusted only if it gives, on other tokens, exactly what the model itself
    gives: a model with a part that is not native would leave that part out.

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

    def rotary(self, positions: torch.Tensor) -> torch.Tensor:
        """As the model's."""
        return self._model.rotary(positions)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As the model's."""
        return self._model.compute_logits(hidden)

    def forward(self, input_ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """As the model's; valid until the next pass."""
        tokens = len(input_ids)
        # What recurrent layers do to their states must not be done twice.
        self._is_native = self._is_native and not ctx.state_layers
        if self._is_native and (self._recorded is None or tokens > self._capacity):
            self._record(tokens, ctx)
        if self._recorded is None or ctx.tap is not None:
            return self._model.forward(input_ids, ctx)
        return self._play(input_ids, ctx)

    def _play(self, input_ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        assert self._recorded is not None
        program, hidden = self._recorded
        step = self._tape.step
        step.num_tokens = len(input_ids)
        step.input_ids = input_ids.data_ptr()
        step.rotary = ctx.places.rotary.data_ptr()
        step.slots = ctx.places.slot_mapping.data_ptr()
        self._tape.play(program)
        return hidden[: len(input_ids)]

    def _record(self, tokens: int, ctx: ForwardContext) -> None:
        self._capacity = max(self._capacity, tokens)
        rotary = ctx.places.rotary
        places = TokenPlaces(
            rotary.new_zeros(self._capacity, *rotary.shape[1:]),
            ctx.places.slot_mapping.new_zeros(self._capacity),
        )
        blank = replace(ctx, places=places)
        ids = torch.zeros(self._capacity, dtype=torch.int32)
        self._recorded = self._tape.record(lambda: self._model.forward(ids, blank))
        if self._recorded is not None and self._is_faithful(tokens, ctx):
            return
        _log.debug("the forward pass is not native throughout and is not recorded")
        self._recorded, self._is_native = None, False

    def _is_faithful(self, tokens: int, ctx: ForwardContext) -> bool:
        others = torch.arange(1, tokens + 1, dtype=torch.int32) % self.vocab_size
        # In warming up many tokens are written to one place of the null block.
        with self._tape.library.one_thread():
            played = self._play(others, ctx).clone()
            return torch.equal(played, self._model.forward(others, ctx))
