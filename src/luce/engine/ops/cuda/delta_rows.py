"""`delta_rows.cu`: some sequences' single tokens in a gated DeltaNet layer."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import torch

from luce.engine.device import kernel_limits
from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState
from luce.engine.ops.triton.causal_conv import KEY_EPS

PRIMITIVES = ("hopper.cuh", "delta_rows_primitives.cuh")
MOST_LANES = 512
"""Sequences of a launch."""
_DIM, _WIDTH = 128, 4
_FEW_UNITS = 3
"""Of a multiprocessor: what is asked for ahead then holds up what the first ones wait for."""
_SHARED_BYTES = 228 << 10
"""Most of a multiprocessor's."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How the work is cut; results are the same bits for cuts of as many warps.

    Attributes:
        warps: of a block of threads.
        stages: states that a block has room for ahead of the one it works on.
        blocks: of threads on a multiprocessor.
    """

    warps: int = 8
    stages: int = 2
    blocks: int = 1

    @classmethod
    def of(cls, units: int, processors: int) -> Cut:
        """For so many states on so many multiprocessors, as measured."""
        return CUTS[0] if units <= _FEW_UNITS * processors else CUTS[1]

    def launch(self, num_heads: int) -> KernelLaunch:
        """With the shared memory that a block of threads needs for so many value heads."""
        exchange = self.warps * (2 * _DIM + 1) + 6 * _DIM + 2 * _DIM // 64 + 2 * num_heads
        inputs = (self.stages + 1) * 3 * _DIM // 2 * (4 + 3)
        nbytes = 4 * (self.stages * _DIM * _DIM + inputs + exchange + 1 + MOST_LANES)
        # All blocks shall find room side by side, whatever the kernel before left.
        share = -(-100 * self.blocks * (nbytes + 1024) // _SHARED_BYTES)
        return KernelLaunch(nbytes, is_early=True, shared_percent=min(100, share))


CUTS = Cut(stages=1), Cut()


def refusal(
    shape: DeltaShape, projected: torch.Tensor, weights: DeltaWeights, state: LayerState
) -> str | None:
    """Why the kernel is not made for such a layer, or None."""
    if projected.dtype != torch.bfloat16:
        return "made for bfloat16"
    if (shape.key_head_dim, shape.value_head_dim, shape.conv_width) != (_DIM, _DIM, _WIDTH):
        return f"made for heads of {_DIM} and convolutions of {_WIDTH} inputs"
    is_aligned = weights.conv.data_ptr() % 16 == 0 and weights.norm.data_ptr() % 8 == 0
    if projected.stride(0) % 4 or state.recurrent.stride(0) % 4 or not is_aligned:
        return "made for aligned rows"
    return None


@dataclass(frozen=True, slots=True)
class RowsKernel:
    """Advances sequences that have one token each.

    Attributes:
        arrivals: i32, of so many sequences times key heads; 0 between launches.
        cut: of the work; None: by how much there is.
        blocks: of threads at most; None: as many as there is room for.
    """

    arrivals: torch.Tensor
    cut: Cut | None = None
    blocks: int | None = None

    def __call__(
        self,
        projected: torch.Tensor,
        shape: DeltaShape,
        weights: DeltaWeights,
        state: LayerState,
        tensors: AttentionTensors,
        out: torch.Tensor,
    ) -> None:
        """The leading sequences of a step.

        Args:
            projected: see `ops.gated_delta.GatedDelta`.
            shape: geometry that `refusal` accepts.
            weights: parameters.
            state: advanced.
            tensors: of the step, up to `MOST_LANES` such sequences.
            out: [T, Hv * Dv]; the sequences' rows are written.

        Raises:
            RuntimeError: the device does not take the kernel.
        """
        lanes, processors = tensors.num_decode, kernel_limits(projected.device).processors
        assert lanes <= MOST_LANES
        assert lanes * shape.num_key_heads <= self.arrivals.numel()
        scales = shape.key_head_dim**-0.5, KEY_EPS, weights.eps
        units = lanes * shape.num_value_heads
        cut = self.cut or Cut.of(units, processors)
        _compiled(shape, cut, projected.device)(
            (min(units, self.blocks or cut.blocks * processors), 1, 1),
            (32 * cut.warps, 1, 1),
            [
                projected, weights.conv, state.conv, weights.decay, weights.dt_bias,
                state.recurrent, weights.norm, tensors.rows, self.arrivals, out, lanes,
                projected.stride(0), state.conv.stride(0), state.recurrent.stride(0),
                *struct.unpack("3i", struct.pack("3f", *scales)),
            ],
        )  # fmt: skip


@functools.cache
def _compiled(shape: DeltaShape, cut: Cut, _device: torch.device) -> DeviceKernel:
    """It is loaded on one device."""
    constants = {
        "HK": shape.num_key_heads,
        "HV": shape.num_value_heads,
        "DK": shape.key_head_dim,
        "DV": shape.value_head_dim,
        "CHANNELS": shape.channels,
        "TILED": int(shape.is_tiled),
        "MOST_LANES": MOST_LANES,
        "WARPS": cut.warps,
        "STAGES": cut.stages,
        "BLOCKS": cut.blocks,
    }
    launch = cut.launch(shape.num_value_heads)
    return compiled_kernel("delta_rows", (*PRIMITIVES, "delta_rows.cu"), constants, launch)
