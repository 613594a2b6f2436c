"""Whole models with FP8 weights on the device path, in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from test_device_executor import GREEDY, checkpoint_of, generate, load

from luce.engine.engine import Engine
from luce.engine.fp8_weights import Fp8Matrix
from luce.engine.layers.embedding import Fp8Embedding
from luce.engine.ops import select
from luce.engine.ops.fp8_matmul import Fp8Ops
from luce.engine.ops.ref import fp8_matmul as ref
from luce.errors import ModelFileError
from luce.loaders.fp8_names import ScaleForm
from luce.loaders.opening import open_checkpoint
from luce.sizing.weights import plane_bytes
from luce.testing.fp8_folder import store_fp8
from luce.testing.tiny_models import tiny_llama, tiny_qwen3, tiny_qwen3moe, tiny_qwen35

pytestmark = [
    pytest.mark.slow,
    # Padding lanes compute on memory that nobody wrote, and their results are dropped.
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch, as_gpu: None) -> None:
    """A CPU passes for a GPU, and cuts products into few programs: the interpreter takes them
    one by one.
    """
    from luce.engine import assembly
    from luce.engine.ops.triton import fp8_linear, linear, moe_fp8

    monkeypatch.setattr(assembly, "_fitted", lambda blueprint, *_: blueprint.sizing)
    monkeypatch.setattr(linear, "_BLOCK_OUT", 64)
    wide = fp8_linear.Fp8Tilings(
        vector={4: fp8_linear.VectorTiling(128, 2, 1, 4)},
        tile={64: fp8_linear.TileTiling(128, 4, 2, 1)},
    )
    tile = moe_fp8.Fp8MoeTiling(16, 128, 4, 2)
    moe = moe_fp8.Fp8MoeTilings(fp8_linear.VectorTiling(128, 2, 0, 4), tile, tile)
    ops = Fp8Ops(
        partial(fp8_linear.TritonFp8Linear, tilings=wide),
        ref.lookup,
        partial(moe_fp8.Fp8Experts, tilings=moe),
    )
    monkeypatch.setattr(select, "_triton_fp8", lambda: ops)


def everything(name: str) -> bool:
    return name.endswith(("_proj.weight", "embed_tokens.weight", "lm_head.weight"))


def as_published(name: str) -> bool:
    """What is small, or decides, is not FP8: two parts of a product are, two are not."""
    return name.endswith(("_proj.weight", "in_proj_qkv.weight", "in_proj_z.weight"))


MODELS: dict[str, tuple[Callable[..., Path], ScaleForm, Callable[[str], bool], dict[str, int]]] = {
    "qwen3": (
        tiny_qwen3,
        "block",
        everything,
        {"hidden_size": 192, "intermediate_size": 160, "num_layers": 1},
    ),
    "qwen35": (tiny_qwen35, "row", as_published, {}),
    "qwen3moe": (tiny_qwen3moe, "one", as_published, {"num_layers": 1}),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_stay_fp8_and_give_the_ids_of_decoded_ones(
    tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    family, form, is_stored, sizes = MODELS[name]
    model = family(tmp_path / "model", container="safetensors", **sizes)
    path, _ = store_fp8(model, form, is_stored)
    decoded = load(path)
    expected = generate(decoded, GREEDY, 16, 2)
    request.getfixturevalue("on_device")
    engine = load(path)
    assert "fp8=triton" in engine.resolved.kernels
    assert generate(engine, GREEDY, 16, 2) == expected
    check_memory(path, engine, form)
    assert engine.resolved.weights_bytes < decoded.resolved.weights_bytes / 2


def check_memory(path: Path, engine: Engine, form: ScaleForm) -> None:
    """What was planned is what was taken, and 3 % over the file's at most."""
    tensors = checkpoint_of(path)
    rotary = engine._runner.model._rotary  # type: ignore[attr-defined]
    held = engine.resolved.weights_bytes - rotary.nbytes
    planned = plane_bytes(open_checkpoint(path), 4)
    # Small vectors are counted among the weights, but not by the layers.
    vectors = sum(meta.nbytes for meta in map(tensors.meta, tensors.names()) if len(meta.shape) != 2)  # fmt: skip  # noqa: E501
    assert planned - vectors <= held <= planned
    stored = sum(meta.nbytes for meta in map(tensors.meta, tensors.names()))
    # A scale for the matrix becomes one a row: much beside rows as short as these.
    assert planned <= (1.1 if form == "one" else 1.03) * stored


def test_a_tied_table_is_its_own_output_matrix(tmp_path: Path, on_device: None) -> None:
    path, _ = store_fp8(tiny_llama(tmp_path / "model", container="safetensors"), "row", everything)
    model = load(path)._runner.model
    embedding = model._embedding  # type: ignore[attr-defined]
    assert isinstance(embedding, Fp8Embedding)
    head = model._head  # type: ignore[attr-defined]
    assert head._parts[0] is embedding.matrix
    assert isinstance(embedding.matrix, Fp8Matrix)
    assert embedding.matrix.codes.dtype == torch.uint8


def test_experts_stored_in_two_ways(tmp_path: Path, on_device: None) -> None:
    model = tiny_qwen3moe(tmp_path / "model", container="safetensors")
    path, _ = store_fp8(model, "row", lambda name: ".experts.1." in name)
    with pytest.raises(ModelFileError, match=r"layers\.0\.mlp\.experts.*several ways"):
        load(path)
