"""`decode_few.cu`: attention of a few single tokens with norm, rotation, cache write and gates."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.decode_pieces import UNIT_TOKENS
from luce.engine.ops.qkv import Placing
from luce.engine.ops.triton.norm_quantise import WORDS
from luce.loaders.quant_formats import GROUP

_FILES = (
    "hopper.cuh",
    "decode_primitives.cuh",
    "decode_task.cuh",
    "decode_few_lines.cuh",
    "decode_few_results.cuh",
    "decode_few.cu",
)
_NAME = "decode_few"
MOST_TOKENS = 4
_HEAD_DIM = 256
_MOST_GROUP, _MOST_ROTATED = 8, 128
_BLOCKS, _WARPS = 8, 3
"""Of a cluster, and of a block of threads."""
_CLUSTERS = 64
"""Of a token. Fewer: more rounds of each over long contexts."""
_UNITS = 16
"""That a cluster scores at a time."""
_RECORD = 3 * 32 * 4
"""Floats that a block leaves of a part."""
_LOG2_E = 1.4426950408889634


def _bits(value: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)


@dataclass(frozen=True, slots=True)
class FewGeometry:
    """What the kernel is compiled for.

    Attributes:
        heads: H, K and D.
        rotated: R.
        block_tokens: P.
        eps: of the heads' norms; None: there are none.
        is_gated: a gate follows each query.
        order: of the words that results are left as: tables' or the plain one; None: as numbers.
        parts: of a context at most.
    """

    heads: HeadShape
    rotated: int
    block_tokens: int
    eps: float | None
    is_gated: bool = True
    order: bool | None = None
    parts: int = 1

    @classmethod
    def of(cls, placing: Placing, *, is_gated: bool, order: bool | None) -> FewGeometry:
        """Of a layer."""
        norms, cache = placing.norms, placing.cache
        assert isinstance(cache, torch.Tensor)
        rotated, eps = 2 * placing.places.rotary.shape[-2], None if norms is None else norms.eps
        parts = max(1, _CLUSTERS // placing.heads.num_kv_heads)
        return cls(placing.heads, rotated, cache.shape[1], eps, is_gated, order, parts)

    @property
    def refusal(self) -> str | None:
        """Why the kernel is not made for it, or None."""
        if self.heads.head_dim != _HEAD_DIM or self.heads.group > _MOST_GROUP:
            return f"made for heads of {_HEAD_DIM}, at most {_MOST_GROUP} on one of the cache"
        if self.block_tokens % UNIT_TOKENS:
            return f"made for blocks of a multiple of {UNIT_TOKENS} tokens"
        if self.rotated not in (_MOST_ROTATED // 2, _MOST_ROTATED):
            return "made for heads of which 64 or 128 numbers are rotated"
        return None

    @property
    def shared_bytes(self) -> int:
        """Of a block of threads: weights of units, queries, a key, values, and barriers."""
        dim = self.heads.head_dim
        return _UNITS * (512 + 32 * dim // _BLOCKS) + 18 * dim + 16

    @property
    def constants(self) -> dict[str, int]:
        """What the kernel's text wants defined."""
        heads = self.heads
        return {
            "G": heads.group,
            "K": heads.num_kv_heads,
            "D": heads.head_dim,
            "R": self.rotated,
            "P": self.block_tokens,
            "WARPS": _WARPS,
            "BLOCKS": _BLOCKS,
            "PARTS": self.parts,
            "SHARED": self.shared_bytes,
            "IS_GATED": int(self.is_gated),
            "HAS_NORM": int(self.eps is not None),
            "WORDS": 0 if self.order is None else 1 + self.order,
            "EPS_BITS": _bits(self.eps or 0.0),
            "SCALE_BITS": _bits(_LOG2_E / heads.head_dim**0.5),
        }


@functools.cache
def _compiled(geometry: FewGeometry, _device: torch.device) -> DeviceKernel:
    """It is loaded on one device."""
    launch = KernelLaunch(geometry.shared_bytes, is_early=True)
    return compiled_kernel(_NAME, _FILES, geometry.constants, launch)


@functools.cache
def _room(geometry: FewGeometry, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """For what parts of contexts leave to each other, and their counters, which are 0 between."""
    blocks = MOST_TOKENS * geometry.heads.num_kv_heads * _BLOCKS
    left = torch.empty(blocks * geometry.parts, _RECORD, device=device)
    return left, torch.zeros(blocks, dtype=torch.int32, device=device)


def attend_few(
    projected: torch.Tensor,
    placing: Placing,
    tensors: AttentionTensors,
    geometry: FewGeometry,
) -> torch.Tensor:
    """Place the tokens of a step, the last of a sequence each, and attend.

    Args:
        projected: [T, (2H + 2K) * D], contiguous rows: each query and its gate, then keys, then
            values. Without gates [T, (H + 2K) * D].
        placing: of a layer; its cache is written.
        tensors: of the step.
        geometry: of the same.

    Returns:
        [T, H * D], or its words as `ops.triton.norm_quantise.norm_and_quantise` makes them.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    heads, norms, cache = placing.heads, placing.norms, placing.cache
    width = heads.num_heads * heads.head_dim
    assert isinstance(cache, torch.Tensor)
    if geometry.order is None:
        out = projected.new_empty(len(projected), width)
    else:
        out = projected.new_empty(len(projected), WORDS, width // GROUP, dtype=torch.int32)
    left, arrivals = _room(geometry, projected.device)
    _compiled(geometry, projected.device)(
        (_BLOCKS * geometry.parts * heads.num_kv_heads, len(projected), 1),
        (32 * _WARPS, 1, 1),
        [
            projected,
            projected if norms is None else norms.query,
            projected if norms is None else norms.key,
            placing.places.rotary,
            cache,
            tensors.block_tables,
            tensors.rows,
            tensors.context_lens,
            left,
            arrivals,
            out,
            projected.stride(0),
            *cache.stride()[:4],
            tensors.block_tables.stride(0),
        ],
    )
    return out
