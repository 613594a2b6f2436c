"""`prefill_attention.cu`: attention of runs of tokens over their paged context, on Hopper.

It takes plain bfloat16 caches and heads of a few sizes; the rest is left to Triton's kernel.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.kv_cache import KVCache
from luce.engine.tensor_map import tensor_map

_NAME = "prefill_attention"
_FILES = ("hopper.cuh", "swizzled_products.cuh", "prefill_attention.cu")
_QUERIES = 128
"""Of a block of threads."""
_THREADS = 384
_LOG2_E = 1.4426950408889634
_LEAST_PAGE = 8
_BARRIER_BYTES = 128


@dataclass(frozen=True, slots=True)
class PrefillTiling:
    """How the kernel cuts its work.

    Attributes:
        tokens: of the context, of a tile.
        stages: tiles of keys, and of values, in shared memory.
        takes_turns: one half multiplies while the other computes weights.
    """

    tokens: int
    stages: int
    takes_turns: bool


TILINGS = {
    64: PrefillTiling(128, 2, takes_turns=True),
    128: PrefillTiling(128, 3, takes_turns=True),
    256: PrefillTiling(64, 2, takes_turns=False),
}
"""By head size."""


def refusal(heads: HeadShape, page: int) -> str | None:
    """Why the kernel is not made for heads and blocks, or None.

    Args:
        heads: geometry.
        page: tokens of a block of the cache.
    """
    tiling = TILINGS.get(heads.head_dim)
    if tiling is None:
        return f"made for heads of {', '.join(map(str, TILINGS))} numbers"
    if page % _LEAST_PAGE or tiling.tokens % page:
        return f"made for blocks of {_LEAST_PAGE} tokens, or {tiling.tokens}, or between"
    return None


def constants(heads: HeadShape, page: int, tiling: PrefillTiling) -> dict[str, int]:
    """What the kernel's text wants defined."""
    scale = struct.pack("f", _LOG2_E / heads.head_dim**0.5)
    return {
        "DIM": heads.head_dim,
        "TILE": tiling.tokens,
        "PAGE": page,
        "GROUP": heads.group,
        "STAGES": tiling.stages,
        "TURNS": int(tiling.takes_turns),
        "SCALE": struct.unpack("i", scale)[0],
    }


def shared_bytes(dim: int, tiling: PrefillTiling) -> int:
    """Of a block of threads: queries or results, the stages, and what aligns them."""
    return 2 * dim * (_QUERIES + 2 * tiling.stages * tiling.tokens) + 1024 + _BARRIER_BYTES


@functools.cache
def _compiled(heads: HeadShape, page: int, tiling: PrefillTiling) -> DeviceKernel:
    nbytes = shared_bytes(heads.head_dim, tiling)
    launch = KernelLaunch(nbytes, is_early=True, is_specific=True)
    return compiled_kernel(_NAME, _FILES, constants(heads, page, tiling), launch)


def prefill_attention(
    qkv: torch.Tensor,
    cache: KVCache,
    tensors: AttentionTensors,
    heads: HeadShape,
    out: torch.Tensor,
    tiling: PrefillTiling | None = None,
) -> None:
    """Attention of all sequences behind the first `tensors.num_decode`.

    Args:
        qkv: bfloat16 [T, H + 2K, D], contiguous; keys and values are in the cache already.
        cache: bfloat16 [N, P, 2, K, D], of any strides but the last one's.
        tensors: tables, rows, lengths and where each sequence's tokens start.
        heads: geometry.
        out: bfloat16 [T, H * D]; those sequences' rows are written.
        tiling: by default that of `TILINGS`.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    assert isinstance(cache, torch.Tensor), "a typed cache is Triton's"
    tiling = tiling or TILINGS[heads.head_dim]
    page = cache.shape[1]
    box = (1, page, 1, 64)
    keys, values = (tensor_map(cache[:, :, part], box) for part in (0, 1))
    kernel = _compiled(heads, page, tiling)
    sequences = tensors.rows.shape[0] - tensors.num_decode
    # No more tiles than that, however the tokens are dealt to the sequences.
    tiles = (len(qkv) - tensors.num_decode) // _QUERIES + sequences
    kernel(
        (heads.num_heads, tiles, 1),
        (_THREADS, 1, 1),
        [
            keys, values, qkv, tensors.block_tables, tensors.rows, tensors.context_lens,
            tensors.query_starts, out, tensors.num_decode, sequences,
            tensors.block_tables.stride(0), qkv.stride(0), out.stride(0),
        ],
    )  # fmt: skip
