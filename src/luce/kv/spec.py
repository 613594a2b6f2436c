"""What a model keeps per token: the one geometry planner, manager and tensors all read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KVKind = Literal["full"]

KVType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
"""What a key or a value is stored as; the last two in groups of 32 with a scale each."""

KV_GROUP = 32
_GROUP_BYTES: dict[KVType, int] = {"f32": 128, "f16": 64, "bf16": 64, "q8_0": 34, "q4_0": 18}

_MOST_CHECKPOINTS = 32

NULL_BLOCK = 0
"""Block 0 is never handed out: padding reads from it and padding lanes write to it."""


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Keys and values of one group of layers.

    Attributes:
        kind: full attention; other kinds get other groups.
        num_layers: layers of the group.
        block_tokens: tokens per block.
        num_kv_heads: K heads.
        head_dim: D.
        element_bytes: bytes of one element of the type the model computes in.
        key_type: what keys are stored as, None = as the model computes.
        value_type: likewise of values; set where `key_type` is.
    """

    kind: KVKind
    num_layers: int
    block_tokens: int
    num_kv_heads: int
    head_dim: int
    element_bytes: int
    key_type: KVType | None = None
    value_type: KVType | None = None

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token over all layers of the group."""
        plain = self.head_dim * self.element_bytes
        heads = (
            plain if kind is None else head_bytes(kind, self.head_dim)
            for kind in (self.key_type, self.value_type)
        )
        return self.num_layers * self.num_kv_heads * sum(heads)

    @property
    def bytes_per_block(self) -> int:
        """Keys and values of one block over all layers of the group."""
        return self.bytes_per_token * self.block_tokens


@dataclass(frozen=True, slots=True)
class StateSpec:
    """What a model keeps per sequence beside its KV: the state of its recurrent layers.

    Attributes:
        num_layers: recurrent layers.
        conv_elements: inputs a layer's causal convolution looks back on.
        recurrent_elements: numbers of a layer's recurrent state, float32.
        conv_element_bytes: bytes of a convolution input.
    """

    num_layers: int
    conv_elements: int
    recurrent_elements: int
    conv_element_bytes: int

    @property
    def bytes_per_slot(self) -> int:
        """State of one sequence, or of one checkpoint, over all layers."""
        conv = self.conv_elements * self.conv_element_bytes
        return self.num_layers * (conv + 4 * self.recurrent_elements)


def head_bytes(kind: KVType, head_dim: int) -> int:
    """Bytes of one head's key or value; quantised ones need whole groups."""
    return _GROUP_BYTES[kind] * head_dim // KV_GROUP


def blocks_for(num_tokens: int, block_tokens: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_tokens)


def headroom_blocks(num_tokens: int, limit_tokens: int, block_tokens: int) -> int:
    """Blocks of a sequence of `num_tokens` with one block of room to grow.

    Args:
        num_tokens: tokens that have or will shortly have their place.
        limit_tokens: tokens the sequence can ever have a place for; no room past it.
        block_tokens: tokens of a block.
    """
    current = blocks_for(num_tokens, block_tokens)
    return max(current, min(current + 1, blocks_for(limit_tokens, block_tokens)))


def checkpoint_slots(max_rows: int, prefix_cache: bool) -> int:
    """Slots for saved states a model with recurrent layers gets.

    Two a row (the prompt's own and one that other prompts share) and one to save to, up to the
    32 snapshots that Lucebox keeps; none if nothing is shared.
    """
    return min(2 * max_rows + 1, _MOST_CHECKPOINTS) if prefix_cache else 0
