"""Gated DeltaNet by the native kernels: the plain recurrence, a thread to a head."""

from __future__ import annotations

import ctypes

import torch

from luce.engine.native import layer_structs
from luce.engine.native.layer_structs import Delta
from luce.engine.native.library import GROUP, Op
from luce.engine.native.tape import Tape
from luce.engine.ops.gated_delta import (
    DeltaShape,
    DeltaWeights,
    GatedDelta,
    LayerState,
    StateBatch,
)


def shape_refusal(shape: DeltaShape) -> str | None:
    """Why a layer of this geometry has no kernels."""
    if shape.key_head_dim % layer_structs.LANES or shape.value_head_dim % GROUP:
        return f"made for keys of whole {layer_structs.LANES} numbers and values of whole {GROUP}"
    if max(shape.key_head_dim, shape.value_head_dim) > layer_structs.MAX_DIM:
        return f"made for heads of up to {layer_structs.MAX_DIM} numbers"
    if not 2 <= shape.conv_width <= layer_structs.MAX_TAPS:
        return f"made for convolutions of 2 to {layer_structs.MAX_TAPS} tokens"
    return None


class NativeGatedDelta:
    """`ops.gated_delta.GatedDelta`; layers that have no kernels go to `otherwise`.

    A token's result is the same to the last bit wherever a step ends and whatever else is in it.
    """

    def __init__(self, tape: Tape, otherwise: GatedDelta) -> None:
        self._tape = tape
        self._otherwise = otherwise
        # By address; the tensor they were made of is kept, so that the address stays its own.
        self._taps: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self,
        projected: torch.Tensor,
        shape: DeltaShape,
        weights: DeltaWeights,
        state: LayerState,
        batch: StateBatch,
    ) -> torch.Tensor:
        """[T, C + Hv*Dv + 2*Hv] → [T, Hv*Dv]."""
        if shape_refusal(shape) is not None:
            return self._otherwise(projected, shape, weights, state, batch)
        tape, tokens = self._tape, len(projected)
        if not tape.is_recording:
            tape.set_sequences(batch.slots, batch.query_starts)
        source = tape.address(projected)
        mixed = tape.empty(tokens, shape.channels)
        out, rows = tape.empty(tokens, shape.value_size), tape.rounded(tokens, shape.value_size)
        taps = self._taps_of(weights.conv)
        layer = _struct(shape, weights, state, mixed)
        layer.taps = taps.data_ptr()
        more = ctypes.addressof(layer)
        width = shape.projected_size
        ops = [
            Op(
                kind=layer_structs.CONVOLVE,
                width=width,
                in_=source,
                out=mixed.data_ptr(),
                more=more,
            ),
            Op(
                kind=layer_structs.RECUR,
                width=width,
                eps=weights.eps,
                in_=source,
                out=out.data_ptr(),
                out_rows=rows.address,
                more=more,
            ),
        ]
        tape.emit(tokens, ops, (layer, taps, weights, state))
        tape.set_twin(out, rows)
        return out

    def _taps_of(self, conv: torch.Tensor) -> torch.Tensor:
        """[C, W] → [W, C]."""
        address = conv.data_ptr()
        if address not in self._taps:
            self._taps[address] = (conv, conv.t().contiguous())
        return self._taps[address][1]


def _struct(
    shape: DeltaShape, weights: DeltaWeights, state: LayerState, mixed: torch.Tensor
) -> Delta:
    assert weights.conv.dtype == state.conv.dtype == torch.float32
    assert state.conv.stride(1) == state.recurrent.stride(1) == 1
    return Delta(
        key_heads=shape.num_key_heads,
        value_heads=shape.num_value_heads,
        key_dim=shape.key_head_dim,
        value_dim=shape.value_head_dim,
        conv_width=shape.conv_width,
        is_tiled=shape.is_tiled,
        decay=weights.decay.data_ptr(),
        dt_bias=weights.dt_bias.data_ptr(),
        norm=weights.norm.data_ptr(),
        mixed=mixed.data_ptr(),
        conv_states=state.conv.data_ptr(),
        states=state.recurrent.data_ptr(),
        conv_stride=state.conv.stride(0),
        state_stride=state.recurrent.stride(0),
    )
