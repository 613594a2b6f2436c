"""How long, how many, how much memory: options and a model's geometry to numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from luce.errors import ModelFileError, PlacementError, UsageError
from luce.kv.spec import KVSpec, StateSpec, blocks_for
from luce.loaders.checkpoint import Checkpoint
from luce.loaders.hparams import HParams
from luce.sizing.element_types import ELEMENT_BYTES
from luce.sizing.steps import scratch_bytes
from luce.sizing.weights import decoded_bytes, plane_bytes, tiled_bytes
from luce.units import format_bytes

DEFAULT_MAX_CTX = 8192
LEAST_CTX = 2
"""A prompt token and an output token."""
_KV_SHARE_OF_FREE = 4


class SizeOptions(Protocol):
    """What was asked for; None = from the model or the memory there is. Sizes are in tokens."""

    @property
    def path(self) -> Path | str:
        """The model's, for messages."""

    @property
    def max_ctx(self) -> int | None:
        """Longest sequence."""

    @property
    def max_concurrency(self) -> int:
        """Rows."""

    @property
    def kv_pool_tokens(self) -> int | None:
        """KV cache shared by the rows."""

    @property
    def chunk(self) -> int:
        """Most prompt tokens of a step."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """A model in the types it will be held in.

    Attributes:
        checkpoint: its files' headers.
        dtype: "float32", "bfloat16" or "float16".
        kv: what it keeps per token.
        state: what it keeps per sequence beside that.
        num_checkpoints: sequences' states kept beside those of the rows.
        is_tiled: on a CPU, quantised matrices stay so, for native kernels.
    """

    checkpoint: Checkpoint
    dtype: str
    kv: KVSpec
    state: StateSpec | None = None
    num_checkpoints: int = 0
    is_tiled: bool = False

    @property
    def element_bytes(self) -> int:
        """Of the type it computes in."""
        return ELEMENT_BYTES[self.dtype]

    def weights_bytes(self, *, on_cpu: bool) -> int:
        """The parameters."""
        if not on_cpu:
            return plane_bytes(self.checkpoint, self.element_bytes)
        if self.is_tiled:
            return tiled_bytes(self.checkpoint, self.element_bytes)
        is_packed = self.dtype == "float32"
        return decoded_bytes(self.checkpoint, self.element_bytes, packed=is_packed)

    def state_bytes(self, max_rows: int) -> int:
        """States of the rows and the checkpoints, and of one padding lane."""
        slots = max_rows + self.num_checkpoints + 1
        return 0 if self.state is None else self.state.bytes_per_slot * slots


@dataclass(frozen=True, slots=True)
class Room:
    """Where a model goes.

    Attributes:
        device: as messages name it.
        is_cpu: whether it is computed on the host.
        free_bytes: what it may take.
    """

    device: str
    is_cpu: bool
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Sizing:
    """What will be allocated.

    Attributes:
        max_ctx: longest sequence in tokens.
        num_blocks: KV blocks without the null block.
        weights_bytes: parameters, as estimated from the checkpoint.
        kv_bytes: KV cache, null block included.
        scratch_bytes: largest step's intermediate tensors.
        state_bytes: recurrent states.
    """

    max_ctx: int
    num_blocks: int
    weights_bytes: int
    kv_bytes: int
    scratch_bytes: int
    state_bytes: int = 0

    @property
    def needed_bytes(self) -> int:
        """The sum."""
        return self.weights_bytes + self.kv_bytes + self.state_bytes + self.scratch_bytes

    @property
    def summary(self) -> str:
        """The sum and its parts, for people."""
        state = f"states {format_bytes(self.state_bytes)}, " if self.state_bytes else ""
        return (
            f"{format_bytes(self.needed_bytes)} (weights {format_bytes(self.weights_bytes)}, "
            f"KV cache {format_bytes(self.kv_bytes)}, {state}"
            f"scratch {format_bytes(self.scratch_bytes)})"
        )


def size_model(options: SizeOptions, geometry: ModelGeometry, room: Room) -> Sizing:
    """Resolve context and KV pool, fitting or not.

    Raises:
        ModelFileError: the model's context holds no prompt with an answer.
        UsageError: the context asked for is longer than the model's, or it or the pool is too
            small.
    """
    checkpoint, spec = geometry.checkpoint, geometry.kv
    hparams, element_bytes = checkpoint.hparams, geometry.element_bytes
    max_ctx = _max_ctx(options, hparams)
    weights = geometry.weights_bytes(on_cpu=room.is_cpu)
    state = geometry.state_bytes(options.max_concurrency)
    scratch = scratch_bytes(hparams, options.chunk, options.max_concurrency, element_bytes)
    wanted = blocks_for(_pool_tokens(options, max_ctx), options.block_tokens)
    if options.kv_pool_tokens is None:
        # A GPU's memory is for models; on a CPU the machine has other uses for it.
        part = _KV_SHARE_OF_FREE if room.is_cpu else 1
        share = (room.free_bytes - weights - state - scratch) // part // spec.bytes_per_block
        wanted = min(wanted, max(share, blocks_for(max_ctx, options.block_tokens)))
    if room.is_cpu:
        # Attention may gather the whole cache of one layer, in the type it computes in.
        token = 2 * spec.num_kv_heads * spec.head_dim * element_bytes
        scratch += (wanted + 1) * options.block_tokens * token
    return Sizing(
        # A sequence cannot be longer than the whole pool.
        max_ctx=min(max_ctx, wanted * options.block_tokens),
        num_blocks=wanted,
        weights_bytes=weights,
        kv_bytes=(wanted + 1) * spec.bytes_per_block,
        scratch_bytes=scratch,
        state_bytes=state,
    )


def check_fits(sizing: Sizing, room: Room) -> None:
    """Raises: PlacementError when it does not; says what is needed and what is free."""
    if sizing.needed_bytes > room.free_bytes:
        raise PlacementError(
            f"not enough memory on {room.device}: {sizing.summary} needed, "
            f"{format_bytes(room.free_bytes)} free; lower --max-ctx, --max-concurrency or "
            "--kv-pool-tokens"
        )


def _max_ctx(options: SizeOptions, hparams: HParams) -> int:
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


def _pool_tokens(options: SizeOptions, max_ctx: int) -> int:
    if options.kv_pool_tokens is None:
        return max_ctx * options.max_concurrency
    least = max(LEAST_CTX, options.block_tokens)
    if options.kv_pool_tokens < least:
        raise UsageError(
            f"--kv-pool-tokens {options.kv_pool_tokens} is too small; one block, and at least a "
            f"prompt token and an output token, need {least}"
        )
    return options.kv_pool_tokens
