"""Where the experts' matrices of a layer are in a checkpoint; see `loaders.model_tensors`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from luce.loaders.model_tensors import ExpertForm, Shape
from luce.loaders.tensor_names import expert_name


@dataclass(frozen=True, slots=True)
class ExpertPiece:
    """One stored tensor of experts.

    Attributes:
        name: parameter.
        shape: expected.
        place: the part of the whole that it fills.
    """

    name: str
    shape: Shape
    place: torch.Tensor


def expert_pieces(
    prefix: str, form: ExpertForm, gate_up: torch.Tensor, down: torch.Tensor
) -> Iterator[ExpertPiece]:
    """The tensors that fill a layer's experts.

    Args:
        prefix: `layers.0.mlp.experts.`
        form: how the checkpoint stores them.
        gate_up: [E, 2F, hidden], to be filled.
        down: [E, hidden, F], likewise.
    """
    size = down.shape[2]
    if form == "fused":
        parts = {"gate_up_proj": gate_up, "down_proj": down}
    else:
        gate, up = gate_up[:, :size], gate_up[:, size:]
        parts = {"gate_proj": gate, "up_proj": up, "down_proj": down}
    for part, whole in parts.items():
        name = f"{prefix}{part}.weight"
        if form != "single":
            yield ExpertPiece(name, tuple(whole.shape), whole)
            continue
        for index, place in enumerate(whole.unbind()):
            yield ExpertPiece(expert_name(name, index), tuple(place.shape), place)


def single_experts(
    prefix: str, shape: tuple[int, int, int]
) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name and shape of each expert's gate, up and down, where each is a tensor of its own.

    Args:
        prefix: `layers.0.mlp.experts.`
        shape: of gate and of up: E, F, hidden.
    """
    count, size, hidden = shape
    for index in range(count):
        for part in ("gate", "up", "down"):
            name = expert_name(f"{prefix}{part}_proj.weight", index)
            yield name, (hidden, size) if part == "down" else (size, hidden)
