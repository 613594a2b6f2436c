"""Attention of runs of tokens over their paged context, on Hopper, by kernels of CUDA C++.

`prefill_attention.cu` is for many tokens, `prefill_few.cu` for few. They take plain bfloat16 caches
and heads of a few sizes; the rest is left to Triton's kernel.
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

FEW = 64
"""Queries of a step that clusters of blocks of threads take head by head."""
_PARTS = ("hopper.cuh", "swizzled_products.cuh", "prefill_parts.cuh")
_QUERIES = 128
"""Of a block of threads, where there are many."""
_THREADS = 384
_LOG2_E = 1.4426950408889634
_LEAST_PAGE = 8
_PROCESSORS = 132
"""Of a Hopper."""
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


FEW_TILINGS = {
    dim: PrefillTiling(tiling.tokens, 2 if dim == 64 else 3, takes_turns=False)
    for dim, tiling in TILINGS.items()
}
"""The same for few queries."""


def cluster_of(heads: HeadShape) -> int:
    """Blocks of threads for a head's few queries: as many as fill a processor."""
    return next((size for size in (8, 4) if heads.num_heads * size <= _PROCESSORS), 2)


def constants(heads: HeadShape, page: int, tiling: PrefillTiling) -> dict[str, int]:
    """What the kernels' text wants defined."""
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


def shared_bytes(dim: int, tiling: PrefillTiling, queries: int = _QUERIES) -> int:
    """Of a block of threads: queries or results, the stages, and what aligns them."""
    return 2 * dim * (queries + 2 * tiling.stages * tiling.tokens) + 1024 + _BARRIER_BYTES


@functools.cache
def _compiled(heads: HeadShape, page: int, tiling: PrefillTiling) -> DeviceKernel:
    nbytes = shared_bytes(heads.head_dim, tiling)
    launch = KernelLaunch(nbytes, is_early=True, is_specific=True)
    defined = constants(heads, page, tiling) | {"QUERIES": _QUERIES, "EACH": 1}
    files = (*_PARTS, "prefill_attention.cu")
    return compiled_kernel("prefill_attention", files, defined, launch)


@functools.cache
def _compiled_few(heads: HeadShape, page: int, tiling: PrefillTiling, cluster: int) -> DeviceKernel:
    nbytes = shared_bytes(heads.head_dim, tiling, FEW)
    launch = KernelLaunch(nbytes, is_early=True, is_specific=True)
    defined = constants(heads, page, tiling) | {"QUERIES": FEW, "EACH": 2, "CLUSTER": cluster}
    return compiled_kernel("prefill_few", (*_PARTS, "prefill_few.cu"), defined, launch)


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
    kernel = _compiled(heads, cache.shape[1], tiling or TILINGS[heads.head_dim])
    sequences = tensors.rows.shape[0] - tensors.num_decode
    # No more tiles than that, however the tokens are dealt to the sequences.
    tiles = (len(qkv) - tensors.num_decode) // _QUERIES + sequences
    _launch(kernel, (heads.num_heads, tiles, 1), qkv, cache, tensors, out)


def few_queries_attention(
    qkv: torch.Tensor,
    cache: KVCache,
    tensors: AttentionTensors,
    heads: HeadShape,
    out: torch.Tensor,
    cut: tuple[PrefillTiling, int] | None = None,
) -> None:
    """The same for at most `FEW` tokens of all those sequences together.

    Args:
        cut: by default what `FEW_TILINGS` and `cluster_of` say.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    assert isinstance(cache, torch.Tensor), "a typed cache is Triton's"
    assert len(qkv) - tensors.num_decode <= FEW, "a sequence has one tile of queries"
    tiling, cluster = cut or (FEW_TILINGS[heads.head_dim], cluster_of(heads))
    kernel = _compiled_few(heads, cache.shape[1], tiling, cluster)
    sequences = tensors.rows.shape[0] - tensors.num_decode
    _launch(kernel, (heads.num_heads * cluster, sequences, 1), qkv, cache, tensors, out)


def _launch(
    kernel: DeviceKernel,
    grid: tuple[int, int, int],
    qkv: torch.Tensor,
    cache: torch.Tensor,
    tensors: AttentionTensors,
    out: torch.Tensor,
) -> None:
    """Either kernel; they take the same."""
    box = (1, cache.shape[1], 1, 64)
    keys, values = (tensor_map(cache[:, :, part], box) for part in (0, 1))
    sequences = tensors.rows.shape[0] - tensors.num_decode
    kernel(
        grid,
        (_THREADS, 1, 1),
        [
            keys, values, qkv, tensors.block_tables, tensors.rows, tensors.context_lens,
            tensors.query_starts, out, tensors.num_decode, sequences,
            tensors.block_tables.stride(0), qkv.stride(0), out.stride(0),
        ],
    )  # fmt: skip
