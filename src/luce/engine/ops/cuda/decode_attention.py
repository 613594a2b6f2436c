"""`decode_attention.cu`: attention of one query a sequence over plain caches, in bfloat16."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import torch

from luce.engine.device import kernel_limits
from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.decode_pieces import CHUNK_UNITS, UNIT_TOKENS
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.triton.paged_attention_decode import DecodeScratch

_FILES = ("decode_task.cuh", "decode_gather.cuh", "decode_attention.cu")
_NAME = "decode_attention"
_STAGES = 2
_HEAD_DIMS = (64, 128, 256)
_DENSE_DIM = 128
"""Larger heads have other cuts, and may have gates."""
_FEW = 4
"""Units a program: where no more are to be read, values are asked for ahead of time."""
_MOST_GROUP = 8
_SHARED_BYTES, _LEAST_SHARED_PERCENT = 228 << 10, 50
"""Most of a multiprocessor's, and the share of it that was measured."""
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Geometry:
    """What the kernel is compiled for.

    Attributes:
        heads: H, K and D.
        block_tokens: P.
    """

    heads: HeadShape
    block_tokens: int

    @property
    def warps(self) -> int:
        """Of a block of threads."""
        return self._cut[0]

    @property
    def blocks(self) -> int:
        """Of threads, that a multiprocessor holds."""
        return self._cut[1]

    @property
    def _cut(self) -> tuple[int, int]:
        # As many as there are registers for. Few KV heads make few tasks, so that each has all of a
        # multiprocessor.
        if self.heads.head_dim <= _DENSE_DIM:
            return 4, 3
        return (8, 1) if self.heads.num_kv_heads < 4 else (4, 2)

    @property
    def units(self) -> int:
        """Of a warp and piece."""
        return -(-CHUNK_UNITS // self.warps)

    @property
    def shared_bytes(self) -> int:
        """Of a block of threads: results in two places, and scores of each lane and unit."""
        group, dim, warps = self.heads.group, self.heads.head_dim, self.warps
        place = warps * group * (4 * (dim + 8) + 12) + 8 * group + 16
        return 2 * (-(-place // 16) * 16) + 512 * warps * self.units

    @property
    def shared_percent(self) -> int:
        """Of a multiprocessor's memory for shared memory and first cache. What loads are under way
        needs the rest; unasked, it is what the product before left, which was nearly nothing.
        """
        needed = self.blocks * (self.shared_bytes + 1024)
        return max(_LEAST_SHARED_PERCENT, -(-100 * needed // _SHARED_BYTES))

    @property
    def constants(self) -> dict[str, int]:
        """What the kernel's text wants defined."""
        heads = self.heads
        (scale,) = struct.unpack("<I", struct.pack("<f", _LOG2_E / heads.head_dim**0.5))
        return {
            "G": heads.group,
            "K": heads.num_kv_heads,
            "D": heads.head_dim,
            "P": self.block_tokens,
            "WARPS": self.warps,
            "UNITS": self.units,
            "STAGES": _STAGES,
            "BLOCKS": self.blocks,
            "SHARED": self.shared_bytes,
            "SCALE_BITS": scale,
        }


@functools.cache
def _compiled(geometry: Geometry, _device: torch.device) -> DeviceKernel:
    """It is loaded on one device."""
    share = geometry.shared_percent
    launch = KernelLaunch(geometry.shared_bytes, is_early=True, shared_percent=share)
    return compiled_kernel(_NAME, _FILES, geometry.constants, launch)


@dataclass(frozen=True, slots=True)
class CudaDecode:
    """`ops.triton.paged_attention_decode.DecodeAttention` for what `refusal` accepts.

    Attributes:
        programs: blocks of threads at most; by default as many as run side by side. Results are the
            same bits for all.
    """

    programs: int | None = None

    def __call__(
        self,
        qkv: torch.Tensor,
        cache: KVCache,
        tensors: AttentionTensors,
        heads: HeadShape,
        scratch: DecodeScratch,
        out: torch.Tensor,
    ) -> None:
        """As `ops.triton.paged_attention_decode.decode_attention`.

        Raises:
            RuntimeError: the device does not take the kernel.
        """
        assert tensors.pieces is not None
        assert isinstance(cache, torch.Tensor)
        geometry = Geometry(heads, cache.shape[1])
        kernel = _compiled(geometry, qkv.device)
        programs = self.programs
        if programs is None:
            programs = kernel_limits(qkv.device).processors * geometry.blocks
        most = (len(tensors.pieces) - 1) * heads.num_kv_heads
        keys, values = cache[:, :, 0], cache[:, :, 1]
        kernel(
            (min(programs, most), 1, 1),
            (32 * geometry.warps, 1, 1),
            [
                qkv,
                keys,
                values,
                tensors.block_tables,
                tensors.pieces,
                scratch.partials,
                scratch.sums,
                scratch.arrivals,
                out,
                *keys.stride()[:3],
                tensors.block_tables.stride(0),
                qkv.stride(0),
                out.stride(0),
                scratch.partials.shape[2],
                programs * _FEW,
                out if tensors.gates is None else tensors.gates,
                0 if tensors.gates is None else tensors.gates.stride(0),
            ],
        )


decode_attention = CudaDecode()


def takes_gates(heads: HeadShape) -> bool:
    """Whether the kernel for such heads minds `AttentionTensors.gates`."""
    return heads.head_dim > _DENSE_DIM


def refusal(heads: HeadShape, block_tokens: int) -> str | None:
    """Why the kernel is not made for such heads and blocks of so many tokens, or None."""
    if heads.head_dim not in _HEAD_DIMS or heads.group > _MOST_GROUP:
        return f"made for heads of 64, 128 or 256, at most {_MOST_GROUP} on one of the cache"
    if block_tokens % UNIT_TOKENS:
        return f"made for blocks of a multiple of {UNIT_TOKENS} tokens"
    return None
