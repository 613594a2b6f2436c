"""Stores the matrices of a safetensors folder as FP8, in every form that files have."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from luce.loaders.fp8_names import BLOCK, ScaleForm

_WEIGHTS = "model.safetensors"


def scaled(
    weight: torch.Tensor, form: ScaleForm
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix as e4m3 numbers and their scales, and the values in float32 that they stand for."""
    rows, columns = weight.shape
    largest = weight.abs().float()
    if form == "block":
        lines, blocks = -(-rows // BLOCK), -(-columns // BLOCK)
        padded = torch.zeros(lines * BLOCK, blocks * BLOCK)
        padded[:rows, :columns] = largest
        scales = padded.view(lines, BLOCK, blocks, BLOCK).amax((1, 3)) / 448
        spread = scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    else:
        scales = largest.amax(1, keepdim=True) / 448 if form == "row" else largest.max() / 448
        spread = scales
    numbers = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    return numbers, scales, numbers.float() * spread


def store_fp8(
    folder: Path, form: ScaleForm, is_stored: Callable[[str], bool] | None = None
) -> tuple[Path, Path]:
    """Write a folder's matrices as FP8, and as the values these stand for.

    Args:
        folder: a model, which stays as it is.
        form: of the scales.
        is_stored: whether the matrix of this name is; by default every projection.

    Returns:
        The folder in FP8, and the one of values, beside it.
    """
    is_stored = is_stored or (lambda name: name.endswith("_proj.weight"))
    stored, plain = (folder.with_name(f"{folder.name}-{kind}") for kind in (form, "plain"))
    kept: dict[str, torch.Tensor] = {}
    values: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / _WEIGHTS).items():
        if tensor.dim() != 2 or not is_stored(name):
            kept[name] = values[name] = tensor
            continue
        kept[name], scales, values[name] = scaled(tensor, form)
        kept[name + ("_scale_inv" if form == "block" else "_scale")] = scales
        if form == "one":
            kept[name.removesuffix("weight") + "input_scale"] = torch.ones(1)
    for target, tensors in ((stored, kept), (plain, values)):
        shutil.copytree(folder, target)
        save_file(tensors, target / _WEIGHTS)
    return stored, plain
