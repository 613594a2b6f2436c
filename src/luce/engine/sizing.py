"""How long, how many, how much memory: options and a model's geometry to numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.device import Device
from luce.engine.options import EngineOptions
from luce.errors import ModelFileError, PlacementError, UsageError
from luce.kv.spec import KVSpec, blocks_for
from luce.loaders.checkpoint import Checkpoint
from luce.loaders.hparams import HParams
from luce.units import format_bytes

DEFAULT_MAX_CTX = 8192
LEAST_CTX = 2
"""A prompt token and an output token."""
_KV_SHARE_OF_FREE = 4
_MIB = 1 << 20
# Allocator, thread buffers and what PyTorch itself takes on first use.
_FIXED_SCRATCH_BYTES = 64 * _MIB


@dataclass(frozen=True, slots=True)
class Sizing:
    """What will be allocated.

    Attributes:
        max_ctx: longest sequence in tokens.
        num_blocks: KV blocks without the null block.
        weights_bytes: parameters, as estimated from the checkpoint.
        kv_bytes: KV cache, null block included.
        scratch_bytes: largest step's intermediate tensors.
    """

    max_ctx: int
    num_blocks: int
    weights_bytes: int
    kv_bytes: int
    scratch_bytes: int

    @property
    def needed_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.scratch_bytes

    @property
    def summary(self) -> str:
        """The sum and its parts, for people."""
        return (
            f"{format_bytes(self.needed_bytes)} (weights {format_bytes(self.weights_bytes)}, "
            f"KV cache {format_bytes(self.kv_bytes)}, scratch {format_bytes(self.scratch_bytes)})"
        )


def size_engine(
    options: EngineOptions,
    checkpoint: Checkpoint,
    spec: KVSpec,
    dtype: torch.dtype,
    device: Device,
    free: int,
) -> Sizing:
    """Resolve context and KV pool.

    Args:
        spec: what the model keeps per token.
        free: bytes the device has free.

    Raises:
        ModelFileError: the model's context holds no prompt with an answer.
        UsageError: the context asked for is longer than the model's, or it or the pool is too
            small.
        PlacementError: it does not fit; the message says what is needed and what is free.
    """
    hparams = checkpoint.hparams
    max_ctx = _max_ctx(options, hparams)
    packed = device.is_cpu and dtype == torch.float32
    weights = weights_bytes(checkpoint, dtype, packed=packed)
    scratch = scratch_bytes(hparams, options.chunk, options.max_concurrency, dtype)
    wanted = blocks_for(_pool_tokens(options, max_ctx), options.block_tokens)
    if options.kv_pool_tokens is None:
        # A GPU's memory is for models; on a CPU the machine has other uses for it.
        part = _KV_SHARE_OF_FREE if device.is_cpu else 1
        share = (free - weights - scratch) // part // spec.bytes_per_block
        wanted = min(wanted, max(share, blocks_for(max_ctx, options.block_tokens)))
    if device.is_cpu:
        # Attention may gather the whole cache of one layer.
        scratch += (wanted + 1) * spec.bytes_per_block // spec.num_layers
    sizing = Sizing(
        # A sequence cannot be longer than the whole pool.
        max_ctx=min(max_ctx, wanted * options.block_tokens),
        num_blocks=wanted,
        weights_bytes=weights,
        kv_bytes=(wanted + 1) * spec.bytes_per_block,
        scratch_bytes=scratch,
    )
    if sizing.needed_bytes > free:
        raise PlacementError(
            f"not enough memory on {device.name}: {sizing.summary} needed, {format_bytes(free)} "
            "free; lower --max-ctx, --max-concurrency or --kv-pool-tokens"
        )
    return sizing


def _max_ctx(options: EngineOptions, hparams: HParams) -> int:
    if hparams.context_length < LEAST_CTX:
        raise ModelFileError(
            f"{options.path}: its context length is {hparams.context_length}; a prompt token and "
            "an output token need 2"
        )
    if options.max_ctx is None:
        return min(hparams.context_length, DEFAULT_MAX_CTX)
    if options.max_ctx > hparams.context_length:
        raise UsageError(
            f"--max-ctx {options.max_ctx} is longer than the model's context of "
            f"{hparams.context_length} tokens"
        )
    if options.max_ctx < LEAST_CTX:
        raise UsageError(
            f"--max-ctx {options.max_ctx} is too short; a prompt token and an output token need 2"
        )
    return options.max_ctx


def _pool_tokens(options: EngineOptions, max_ctx: int) -> int:
    if options.kv_pool_tokens is None:
        return max_ctx * options.max_concurrency
    least = max(LEAST_CTX, options.block_tokens)
    if options.kv_pool_tokens < least:
        raise UsageError(
            f"--kv-pool-tokens {options.kv_pool_tokens} is too small; one block, and at least a "
            f"prompt token and an output token, need {least}"
        )
    return options.kv_pool_tokens


def weights_bytes(checkpoint: Checkpoint, dtype: torch.dtype, *, packed: bool) -> int:
    """Memory of the parameters in `dtype`.

    Args:
        packed: matrices are repacked, so a tied embedding is stored as table and as matrix.
    """
    hparams, tensors = checkpoint.hparams, checkpoint.tensors
    elements = 0
    for name in tensors.names():
        size = 1
        for extent in tensors.meta(name).shape:
            size *= extent
        elements += size
    if packed and hparams.tie_word_embeddings:
        elements += hparams.vocab_size * hparams.hidden_size
    return elements * dtype.itemsize


def scratch_bytes(hparams: HParams, chunk: int, max_rows: int, dtype: torch.dtype) -> int:
    """Intermediate tensors of the largest step: activations, logits, one matrix being packed."""
    tokens = chunk + max_rows
    q_rows = hparams.num_heads * hparams.head_dim
    kv_rows = hparams.num_kv_heads * hparams.head_dim
    per_token = 4 * hparams.hidden_size + 3 * q_rows + 4 * kv_rows + 3 * hparams.intermediate_size
    logits = 4 * max_rows * hparams.vocab_size * 4
    matrix = hparams.vocab_size * hparams.hidden_size * dtype.itemsize
    return tokens * per_token * dtype.itemsize + logits + matrix + _FIXED_SCRATCH_BYTES
