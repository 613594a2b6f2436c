"""Tensors that belong to a model's file and not to what luce computes: they are not loaded.

Two kinds: layers that only draft tokens (multi-token prediction), and the tower that sees.
"""

from __future__ import annotations

import re
from collections import Counter

from luce.loaders.checkpoint import Container
from luce.loaders.hparams import HParams
from luce.loaders.mapped import MappedTensors

DRAFTING = "multi-token prediction"
VISION = "vision tower"
_GGUF_BLOCK = re.compile(r"blk\.(\d+)\.")
_VISION_PREFIXES = ("model.visual.", "visual.")
_MTP_PREFIX = "mtp."


def drop_unused(container: Container, hparams: HParams, tensors: MappedTensors) -> Counter[str]:
    """Take out of `tensors` what the model is not computed from.

    Returns:
        How many tensors of which kind.
    """
    kinds = {name: _kind(container, hparams, name) for name in tensors.names()}
    unused = {name: kind for name, kind in kinds.items() if kind is not None}
    tensors.drop(unused)
    return Counter(unused.values())


def unused_notice(unused: Counter[str]) -> str:
    """For people: "vision tower (153 tensors), ..."; empty if there is nothing."""
    return ", ".join(f"{kind} ({count} tensors)" for kind, count in sorted(unused.items()))


def _kind(container: Container, hparams: HParams, name: str) -> str | None:
    if container == "gguf":
        match = _GGUF_BLOCK.match(name)
        first, count = hparams.num_layers, hparams.num_mtp_layers
        is_drafting = match is not None and first <= int(match[1]) < first + count
        return DRAFTING if is_drafting else None
    if hparams.linear_attention is None:
        return None
    if name.startswith(_VISION_PREFIXES):
        return VISION
    return DRAFTING if name.startswith(_MTP_PREFIX) else None
