"""Rules for the linear layers of a hybrid, whichever file they come from."""

from __future__ import annotations

from itertools import groupby

from luce.errors import ModelFileError
from luce.loaders.hparams import HParams, LayerType, LinearAttention
from luce.loaders.keys import Keys

_MAX_LAYERS = 1 << 12


def pattern(num_layers: int, interval: int) -> tuple[LayerType, ...]:
    """Every `interval`-th layer has full attention.

    Raises:
        ModelFileError: there are more layers than any model has.
    """
    if num_layers > _MAX_LAYERS:
        raise ModelFileError(f"a hybrid of {num_layers} layers is not supported")
    return tuple(
        "linear_attention" if (layer + 1) % interval else "full_attention"
        for layer in range(num_layers)
    )


def check_linear(keys: Keys, heads_key: str, linear: LinearAttention) -> None:
    """Refuse layers that cannot be computed.

    Args:
        heads_key: what the file calls the number of value heads.

    Raises:
        ModelFileError: the value heads cannot be dealt out over the key heads, or one of both
            kinds of layers is missing.
    """
    if linear.num_value_heads % linear.num_key_heads:
        keys.refuse(
            heads_key,
            f"the number of value heads is no multiple of the {linear.num_key_heads} key heads",
        )
    for kind in ("full_attention", "linear_attention"):
        if kind not in linear.layer_types:
            raise ModelFileError(
                f"{keys.source}: none of its {len(linear.layer_types)} layers is of the kind "
                f"{kind}; a hybrid needs both kinds"
            )


def layer_pattern(hparams: HParams) -> str:
    """A model's layers for people: "16 x (3 linear attention + 1 full attention)"."""
    linear = hparams.linear_attention
    if linear is None:
        return f"{hparams.num_layers} full attention"
    kinds = linear.layer_types
    # The shortest stretch that the whole is made of.
    period = next(
        size for size in range(1, len(kinds) + 1) if kinds == kinds[:size] * (len(kinds) // size)
    )
    runs = " + ".join(
        f"{len(list(run))} {kind.replace('_', ' ')}" for kind, run in groupby(kinds[:period])
    )
    times = len(kinds) // period
    return runs if times == 1 else f"{times} x ({runs})"
