"""`delta_words.cu`: one token of a gated DeltaNet layer, results as words for the next product."""

from __future__ import annotations

import functools
import struct

import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState
from luce.loaders.quant_formats import GROUP

PRIMITIVES = ("hopper.cuh", "delta_words_primitives.cuh")
COLUMNS = 16
"""Of a block of threads, and of a part of words."""
KEY_EPS = 1e-6
_KEY_DIM = 128
_WARPS = 4
"""With cells of the state; one more has the columns' values."""
_ALIGNMENT = 4


def refusal(shape: DeltaShape, projected: torch.Tensor, state: LayerState) -> str | None:
    """Why the kernel is not made for such a layer, or None."""
    if projected.dtype != torch.bfloat16:
        return "made for bfloat16"
    if shape.key_head_dim != _KEY_DIM or shape.value_head_dim % GROUP:
        return f"made for keys of {_KEY_DIM} numbers and values of whole groups"
    if state.recurrent.stride(0) % _ALIGNMENT or state.recurrent.storage_offset() % _ALIGNMENT:
        return "made for aligned states"
    return "made for a convolution" if shape.conv_width < 2 else None


def advance(
    projected: torch.Tensor,
    layer: tuple[DeltaShape, DeltaWeights, LayerState],
    tensors: AttentionTensors,
    results: tuple[torch.Tensor, torch.Tensor],
    arrivals: torch.Tensor,
    *,
    order: bool,
) -> None:
    """Advance sequences of one token each, which are all of a step.

    Args:
        projected: bfloat16, see `ops.gated_delta.GatedDelta`.
        layer: geometry that is not refused, parameters in bfloat16, states.
        tensors: of the step.
        results: words and squares of `PartWords`, to be written.
        arrivals: i32, T times key heads; 0 between launches.
        order: of the words: tables' or the plain one.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    shape, weights, state = layer
    scale_bits, eps_bits = struct.unpack("2i", struct.pack("2f", shape.key_head_dim**-0.5, KEY_EPS))
    _compiled(shape, order, projected.device)(
        (shape.value_size // COLUMNS, len(projected), 1),
        (32 * (_WARPS + 1), 1, 1),
        [
            projected, weights.conv, state.conv, weights.decay, weights.dt_bias, state.recurrent,
            weights.norm, tensors.rows, arrivals, *results, projected.stride(0),
            state.conv.stride(0), state.recurrent.stride(0), scale_bits, eps_bits,
        ],
    )  # fmt: skip


@functools.cache
def _compiled(shape: DeltaShape, order: bool, _device: torch.device) -> DeviceKernel:
    """It is loaded on one device."""
    constants = {
        "HK": shape.num_key_heads,
        "HV": shape.num_value_heads,
        "DK": shape.key_head_dim,
        "DV": shape.value_head_dim,
        "CHANNELS": shape.channels,
        "WIDTH": shape.conv_width,
        "TILED": int(shape.is_tiled),
        "TABLE": int(order),
    }
    numbers = 2 * _KEY_DIM + COLUMNS + _WARPS * (2 * COLUMNS + 4) + 3
    launch = KernelLaunch(4 * numbers, is_early=True)
    return compiled_kernel("delta_words", (*PRIMITIVES, "delta_words.cu"), constants, launch)
