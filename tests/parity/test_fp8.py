"""FP8 safetensors models: the values their scales make of them, and clear errors without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from engine_harness import Driver, Request, load_engine, random_ids
from safetensors.torch import load_file, save_file

from luce.errors import ModelFileError
from luce.testing.tiny_models import tiny_qwen3

BLOCK = 128


def scaled(weight: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers, scales and the values they stand for."""
    rows, columns = weight.shape
    if form == "block":
        shape = (-(-rows // BLOCK), -(-columns // BLOCK))
        scales = torch.rand(shape, generator=torch.Generator().manual_seed(rows)) * 0.01 + 0.001
        spread = scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    elif form == "row":
        scales = weight.abs().amax(1, keepdim=True) / 448
        spread = scales
    else:
        scales = (weight.abs().max() / 448).reshape(())
        spread = scales
    numbers = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    return numbers, scales, numbers.float() * spread


def fp8_model(folder: Path, form: str) -> tuple[Path, Path]:
    """The folder stored in FP8, and one of the values it stands for."""
    plain = tiny_qwen3(
        folder / "plain", container="safetensors", hidden_size=192, intermediate_size=320
    )
    stored = folder / "fp8"
    shutil.copytree(plain, stored)
    tensors = load_file(plain / "model.safetensors")
    kept: dict[str, torch.Tensor] = {}
    decoded: dict[str, torch.Tensor] = {}
    for name, values in tensors.items():
        if "_proj.weight" not in name:
            kept[name] = decoded[name] = values
            continue
        numbers, scales, meant = scaled(values, form)
        kept[name], decoded[name] = numbers, meant
        kept[name + ("_scale_inv" if form == "block" else "_scale")] = scales
        if form == "one":
            kept[name.removesuffix("weight") + "input_scale"] = torch.ones(1)
    save_file(kept, stored / "model.safetensors")
    save_file(decoded, plain / "model.safetensors")
    return stored, plain


@pytest.mark.parametrize("form", ["block", "row", "one"])
def test_the_same_ids_as_the_values_meant(tmp_path: Path, form: str) -> None:
    stored, plain = fp8_model(tmp_path, form)

    def requests() -> list[Request]:
        return [Request(random_ids(n, 280, seed=n), max_tokens=8) for n in (5, 40)]

    assert Driver(load_engine(stored)).run(requests()) == Driver(load_engine(plain)).run(requests())


def test_pieces_take_their_own_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, plain = fp8_model(tmp_path, "block")
    monkeypatch.setattr("luce.engine.weights._PIECE_ELEMENTS", 192 * 50)
    request = [Request(random_ids(30, 280, seed=1), max_tokens=8)]
    again = [Request(random_ids(30, 280, seed=1), max_tokens=8)]
    assert Driver(load_engine(stored)).run(request) == Driver(load_engine(plain)).run(again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda scales: None, "its scales are missing"),
        (lambda scales: scales[:, :1], "are no scales of"),
    ],
    ids=["missing", "misshapen"],
)
def test_scales_that_do_not_fit(tmp_path: Path, change: object, message: str) -> None:
    stored, _ = fp8_model(tmp_path, "block")
    tensors = load_file(stored / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight_scale_inv"
    scales = change(tensors.pop(name))  # type: ignore[operator]
    if scales is not None:
        tensors[name] = scales.contiguous()
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(ModelFileError, match=message):
        load_engine(stored)
