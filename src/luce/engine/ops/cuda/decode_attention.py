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

_FILE, _NAME = "decode_attention.cu", "decode_attention"
_WARPS, _STAGES, _BLOCKS = 4, 2, 3
_HEAD_DIMS = (64, 128)
_MOST_GROUP = 8
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
    def constants(self) -> dict[str, int]:
        """What the kernel's text wants defined."""
        heads = self.heads
        (scale,) = struct.unpack("<I", struct.pack("<f", _LOG2_E / heads.head_dim**0.5))
        return {
            "G": heads.group,
            "K": heads.num_kv_heads,
            "D": heads.head_dim,
            "P": self.block_tokens,
            "WARPS": _WARPS,
            "UNITS": -(-CHUNK_UNITS // _WARPS),
            "STAGES": _STAGES,
            "BLOCKS": _BLOCKS,
            "SCALE_BITS": scale,
        }


@functools.cache
def _compiled(geometry: Geometry) -> DeviceKernel:
    return compiled_kernel(_NAME, (_FILE,), geometry.constants, KernelLaunch(is_early=True))


def decode_attention(
    qkv: torch.Tensor,
    cache: KVCache,
    tensors: AttentionTensors,
    heads: HeadShape,
    scratch: DecodeScratch,
    out: torch.Tensor,
) -> None:
    """`ops.triton.paged_attention_decode.decode_attention` for what `refusal` accepts.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    assert tensors.pieces is not None
    assert isinstance(cache, torch.Tensor)
    kernel = _compiled(Geometry(heads, cache.shape[1]))
    programs = kernel_limits(qkv.device).processors * _BLOCKS
    most = (len(tensors.pieces) - 1) * heads.num_kv_heads
    keys, values = cache[:, :, 0], cache[:, :, 1]
    kernel(
        (min(programs, most), 1, 1),
        (32 * _WARPS, 1, 1),
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
        ],
    )


def refusal(heads: HeadShape, block_tokens: int) -> str | None:
    """Why the kernel is not made for such heads and blocks of so many tokens, or None."""
    if heads.head_dim not in _HEAD_DIMS or heads.group > _MOST_GROUP:
        return f"made for heads of 64 or 128, at most {_MOST_GROUP} of them on one of the cache"
    if block_tokens % UNIT_TOKENS:
        return f"made for blocks of a multiple of {UNIT_TOKENS} tokens"
    return None
