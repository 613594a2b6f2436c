"""What a model keeps per token and per sequence, from its hyper-parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, get_args

from luce.errors import UsageError
from luce.kv.spec import KV_GROUP, KVSpec, KVType, StateSpec
from luce.loaders.hparams import HParams
from luce.sizing.element_types import AUTO


class CacheTypes(Protocol):
    """What was asked for the KV cache; "auto" is the type the model computes in."""

    @property
    def cache_type_k(self) -> str:
        """Of keys."""

    @property
    def cache_type_v(self) -> str:
        """Of values."""


def kv_spec(hparams: HParams, block_tokens: int, element_bytes: int) -> KVSpec:
    """Keys and values of the layers with full attention, as the model computes them."""
    return KVSpec(
        kind="full",
        num_layers=hparams.num_attention_layers,
        block_tokens=block_tokens,
        num_kv_heads=hparams.num_kv_heads,
        head_dim=hparams.head_dim,
        element_bytes=element_bytes,
    )


def state_spec(hparams: HParams, element_bytes: int) -> StateSpec | None:
    """States of the recurrent layers; None for a model without them."""
    linear = hparams.linear_attention
    if linear is None:
        return None
    return StateSpec(
        num_layers=linear.num_layers,
        conv_elements=linear.conv_channels * (linear.conv_kernel - 1),
        recurrent_elements=linear.num_value_heads * linear.key_head_dim * linear.value_head_dim,
        conv_element_bytes=element_bytes,
    )


def typed_spec(spec: KVSpec, types: CacheTypes, own: KVType) -> KVSpec:
    """The geometry with the types asked for.

    Args:
        spec: as the model computes.
        types: what was asked for.
        own: the type the model computes in; a cache that is all of it is left plain.

    Raises:
        UsageError: a type is unknown, or the heads do not fill its groups.
    """
    key = _resolved("--cache-type-k", types.cache_type_k, own, spec.head_dim)
    value = _resolved("--cache-type-v", types.cache_type_v, own, spec.head_dim)
    if key == value == own:
        return spec
    return replace(spec, key_type=key, value_type=value)


def _resolved(flag: str, text: str, own: KVType, head_dim: int) -> KVType:
    if text == AUTO:
        return own
    known: dict[str, KVType] = {name: name for name in get_args(KVType)}
    if text not in known:
        raise UsageError(f"unknown {flag} {text!r}; use {AUTO}, {', '.join(known)}")
    kind = known[text]
    if kind.startswith("q") and head_dim % KV_GROUP:
        raise UsageError(
            f"{flag} {kind} stores groups of {KV_GROUP} numbers, but this model's heads have "
            f"{head_dim}; use {flag} f16"
        )
    return kind
