"""FP8 matrices as models get them: what lies in one, what apart, and the values they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pytest
import torch

from luce.engine import weights as module
from luce.engine.fp8_weights import Fp8Matrix, StoredPart
from luce.engine.ops.ref.fp8_matmul import decode
from luce.engine.weights import WeightReader
from luce.errors import ModelFileError
from luce.loaders.checkpoint import Checkpoint, TensorMeta
from luce.loaders.fp8_names import ScaleForm, scale_form
from luce.loaders.hparams import HParams
from luce.testing.fp8_folder import scaled

CPU = torch.device("cpu")
TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3"}
Tensors = Mapping[str, torch.Tensor]


class Stored:
    """Tensors in memory; implements `TensorSource`."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def names(self) -> Iterator[str]:
        return iter(self._tensors)

    def meta(self, name: str) -> TensorMeta:
        values = self._tensors[name]
        return TensorMeta(name, TYPES[values.dtype], tuple(values.shape), values.nbytes)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        return self._tensors[name].flatten().view(torch.uint8).numpy()


def reader(tensors: Tensors, heard: list[int] | None = None) -> WeightReader:
    hparams = HParams.__new__(HParams)
    checkpoint = Checkpoint("safetensors", "qwen3", "x", hparams, Stored(tensors), 0)
    done = heard if heard is not None else []
    return WeightReader(checkpoint, torch.float32, CPU, lambda _, count, all_: done.append(count))


def noise(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def stored(form: ScaleForm | None, name: str, rows: int, columns: int, seed: int = 0) -> Tensors:
    """A matrix "model.{name}", and its scales unless it is to be plain."""
    weight = noise(rows, columns, seed)
    if form is None:
        return {f"model.{name}": weight.bfloat16()}
    numbers, scales, _ = scaled(weight, form)
    suffix = "_scale_inv" if form == "block" else "_scale"
    return {f"model.{name}": numbers, f"model.{name}{suffix}": scales}


Part = tuple[str, ScaleForm | None, int]


def read(*parts: Part, columns: int = 200) -> tuple[list[StoredPart] | None, torch.Tensor]:
    """What the reader makes of parts, and the values it decodes from them."""
    tensors: dict[str, torch.Tensor] = {}
    shapes = []
    for index, (name, form, rows) in enumerate(parts):
        full = f"layers.0.self_attn.{name}_proj.weight"
        tensors |= stored(form, full, rows, columns, index)
        shapes.append((full, (rows, columns)))
    source = reader(tensors)
    return source.fp8(*shapes), source.matrix(*shapes)


@pytest.mark.parametrize(
    ("parts", "rows"),
    [
        ([("q", "block", 256), ("k", "block", 128), ("v", "block", 40)], [424]),
        ([("q", "block", 256), ("k", "block", 100), ("v", "block", 128)], [356, 128]),
        ([("q", "row", 33), ("k", "one", 5), ("v", "row", 7)], [45]),
        ([("q", "row", 33), ("k", "block", 129)], [33, 129]),
        ([("q", "block", 256), ("k", None, 6), ("v", None, 2), ("o", "block", 9)], [256, 8, 9]),
    ],
    ids=["whole blocks", "broken block", "rows", "two kinds", "plain between"],
)
def test_what_lies_in_one_matrix(
    parts: list[Part], rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE_ELEMENTS", 200 * 50)
    found, expected = read(*parts)
    assert found is not None
    assert [len(decode(part)) for part in found] == rows
    assert torch.equal(torch.cat([decode(part) for part in found]), expected)


def test_nothing_without_fp8() -> None:
    found, _ = read(("q", None, 8), ("k", None, 4))
    assert found is None


def test_memory_and_progress() -> None:
    tensors = stored("block", "layers.0.mlp.down_proj.weight", 200, 300)
    heard: list[int] = []
    found = reader(tensors, heard).fp8(("layers.0.mlp.down_proj.weight", (200, 300)))
    assert found is not None
    (matrix,) = found
    assert matrix.nbytes == 200 * 300 + 4 * 2 * 3
    assert heard[-1] == 200 * 300


def experts(forms: list[ScaleForm | None], size: int, hidden: int) -> Tensors:
    """Of each expert gate, up and down in a form."""
    tensors: dict[str, torch.Tensor] = {}
    for index, form in enumerate(forms):
        for seed, part in enumerate(("gate", "up", "down")):
            rows, columns = (hidden, size) if part == "down" else (size, hidden)
            name = f"layers.0.mlp.experts.{index}.{part}_proj.weight"
            tensors |= stored(form, name, rows, columns, 3 * index + seed)
    return tensors


@pytest.mark.parametrize("form", ["block", "row", "one"])
def test_experts_one_below_the_other(form: ScaleForm) -> None:
    prefix, shape = "layers.0.mlp.experts.", (3, 136, 200)
    source = reader(experts([form] * 3, 136, 200))
    found = source.fp8_experts(prefix, shape)
    assert found is not None
    gate_up, down = source.experts(prefix, shape)
    assert torch.equal(decode(found[0]).view(gate_up.shape), gate_up)
    assert torch.equal(decode(found[1]).view(down.shape), down)
    assert isinstance(found[0], Fp8Matrix)
    assert [each.is_block for each in found] == [form == "block"] * 2


def test_plain_experts_are_not_fp8() -> None:
    source = reader(experts([None, None], 8, 16))
    assert source.fp8_experts("layers.0.mlp.experts.", (2, 8, 16)) is None


@pytest.mark.parametrize("forms", [["row", None], ["row", "block"]], ids=["plain", "kinds"])
def test_experts_in_several_ways_are_refused(forms: list[ScaleForm | None]) -> None:
    source = reader(experts(forms, 200, 300))
    with pytest.raises(ModelFileError, match="stored in several ways"):
        source.fp8_experts("layers.0.mlp.experts.", (2, 200, 300))


def test_scales_are_told_apart_by_their_shape() -> None:
    matrix = (2, 256)
    assert scale_form((), matrix) == scale_form((1,), matrix) == scale_form((1, 1), matrix) == "one"
    assert scale_form((2,), matrix) == scale_form((2, 1), matrix) == "row"
    # As many as rows, and yet one a block.
    assert scale_form((1, 2), matrix) == "block"
    assert scale_form((2, 2), matrix) is scale_form((256,), matrix) is None
