"""FP8 safetensors models: the values their scales make of them, and clear errors without."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_harness import Driver, Request, load_engine, random_ids
from safetensors.torch import load_file, save_file

from luce.errors import ModelFileError
from luce.loaders.fp8_names import ScaleForm
from luce.testing.fp8_folder import store_fp8
from luce.testing.tiny_models import tiny_qwen3


def fp8_model(folder: Path, form: ScaleForm) -> tuple[Path, Path]:
    """A folder stored in FP8, and one of the values it stands for."""
    model = tiny_qwen3(
        folder / "model", container="safetensors", hidden_size=192, intermediate_size=320
    )
    return store_fp8(model, form)


@pytest.mark.parametrize("form", ["block", "row", "one"])
def test_the_same_ids_as_the_values_meant(tmp_path: Path, form: ScaleForm) -> None:
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


def spoilt(scales: torch.Tensor, value: float) -> torch.Tensor:
    scales[-1, -1] = value
    return scales


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda scales: None, "its scales are missing"),
        (lambda scales: scales[:, :1], "are no scales of"),
        (lambda scales: scales.to(torch.float64), "is F64"),
        (lambda scales: spoilt(scales, float("nan")), "no finite numbers"),
        (lambda scales: spoilt(scales, float("inf")), "no finite numbers"),
    ],
    ids=["missing", "misshapen", "type", "nan", "infinite"],
)
def test_scales_that_do_not_fit(tmp_path: Path, change: object, message: str) -> None:
    stored, _ = fp8_model(tmp_path, "block")
    tensors = load_file(stored / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight_scale_inv"
    scales = change(tensors.pop(name))  # type: ignore[operator]
    if scales is not None:
        tensors[name] = scales.contiguous()
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(ModelFileError, match=message) as caught:
        load_engine(stored)
    assert "model.layers.1.mlp.down_proj.weight" in str(caught.value)


def test_the_other_kind_of_fp8_is_refused_by_name(tmp_path: Path) -> None:
    stored, _ = fp8_model(tmp_path, "row")
    tensors = load_file(stored / "model.safetensors")
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors[name] = tensors[name].float().to(torch.float8_e5m2)
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"o_proj.weight' has type F8_E5M2.*cannot compute"):
        load_engine(stored)
