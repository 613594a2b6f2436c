"""From stored tensors to parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from luce.engine import weights as module
from luce.engine.weights import WeightReader, gguf_name, safetensors_name
from luce.errors import ModelFileError
from luce.loaders.checkpoint import Checkpoint, Container, TensorMeta
from luce.loaders.hparams import HParams

CPU = torch.device("cpu")


class Stored:
    """Tensors in memory, as float32 or float16."""

    def __init__(self, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        self.tensors = tensors

    def names(self) -> Iterator[str]:
        return iter(self.tensors)

    def meta(self, name: str) -> TensorMeta:
        values = self.tensors[name]
        kind = {"float32": "F32", "float16": "F16", "int64": "I64"}[str(values.dtype)]
        return TensorMeta(name, kind, values.shape, values.nbytes)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        return self.tensors[name].reshape(-1).view(np.uint8)


def reader(
    tensors: Mapping[str, npt.NDArray[Any]],
    *,
    container: Container = "gguf",
    dtype: torch.dtype = torch.float32,
    events: list[tuple[str, int, int]] | None = None,
) -> WeightReader:
    hparams = HParams.__new__(HParams)  # the reader asks for shapes and needs no numbers
    checkpoint = Checkpoint(container, "llama", "x", hparams, Stored(tensors), 0)
    heard = events if events is not None else []
    return WeightReader(checkpoint, dtype, CPU, lambda *event: heard.append(event))


def values(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "gguf", "safetensors"),
    [
        ("embed_tokens.weight", "token_embd.weight", "model.embed_tokens.weight"),
        ("norm.weight", "output_norm.weight", "model.norm.weight"),
        ("lm_head.weight", "output.weight", "lm_head.weight"),
        ("layers.0.input_layernorm.weight", "blk.0.attn_norm.weight", None),
        ("layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias", None),
        ("layers.3.self_attn.k_norm.weight", "blk.3.attn_k_norm.weight", None),
        ("layers.3.mlp.down_proj.weight", "blk.3.ffn_down.weight", None),
        ("rope_freqs", "rope_freqs.weight", None),
    ],
)
def test_names(name: str, gguf: str, safetensors: str | None) -> None:
    assert gguf_name(name) == gguf
    assert safetensors_name(name) == (safetensors or f"model.{name}")


def test_fused_matrices() -> None:
    first, second = values(3, 4), values(5, 4, seed=1)
    source = reader({"blk.0.ffn_gate.weight": first, "blk.0.ffn_up.weight": second})
    found = source.matrix(
        ("layers.0.mlp.gate_proj.weight", (3, 4)), ("layers.0.mlp.up_proj.weight", (5, 4))
    )
    assert np.array_equal(found.numpy(), np.concatenate([first, second]))


def test_fused_vectors_in_the_compute_type() -> None:
    tensors = {"model.a.bias": values(3), "model.b.bias": values(2, seed=1)}
    source = reader(tensors, container="safetensors", dtype=torch.bfloat16)
    found = source.vector(("a.bias", (3,)), ("b.bias", (2,)))
    expected = torch.from_numpy(np.concatenate(list(tensors.values()))).bfloat16()
    assert torch.equal(found, expected)


def test_pieces_give_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE_ELEMENTS", 12)
    stored = values(10, 5)
    events: list[tuple[str, int, int]] = []
    found = reader({"output.weight": stored}, events=events).matrix(("lm_head.weight", (10, 5)))
    assert np.array_equal(found.numpy(), stored)
    assert [done for _, done, _ in events] == [40, 80, 120, 160, 200]
    assert {(stage, total) for stage, _, total in events} == {("weights", 200)}


def test_progress_never_exceeds_the_total() -> None:
    events: list[tuple[str, int, int]] = []
    source = reader({"token_embd.weight": values(4, 4)}, events=events)
    source.table("embed_tokens.weight", (4, 4))
    source.matrix(("embed_tokens.weight", (4, 4)))
    assert [done for _, done, _ in events] == [64, 64]


def test_tables_keep_a_narrower_exact_type() -> None:
    half = values(4, 4).astype(np.float16)
    found = reader({"token_embd.weight": half}).table("embed_tokens.weight", (4, 4))
    assert found.dtype == torch.float16
    assert np.array_equal(found.numpy(), half)
    # No narrower than the compute type, so nothing is gained and the type is the model's.
    narrow = reader({"token_embd.weight": half}, dtype=torch.bfloat16)
    assert narrow.table("embed_tokens.weight", (4, 4)).dtype == torch.bfloat16
    full = reader({"token_embd.weight": values(4, 4)})
    assert full.table("embed_tokens.weight", (4, 4)).dtype == torch.float32


def test_optional_vector() -> None:
    factors = values(8)
    source = reader({"rope_freqs.weight": factors}, dtype=torch.bfloat16)
    found = source.optional_vector("rope_freqs", (8,))
    assert found is not None
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy(), factors)
    assert reader({}).optional_vector("rope_freqs", (8,)) is None


def test_missing_tensor() -> None:
    with pytest.raises(ModelFileError, match=r"'output.weight' is missing; \[4, 2\] is expected"):
        reader({}).matrix(("lm_head.weight", (4, 2)))


def test_wrong_shape() -> None:
    source = reader({"output.weight": values(4, 3)})
    with pytest.raises(ModelFileError, match=r"'output.weight' is \[4, 3\], but \[4, 2\]"):
        source.matrix(("lm_head.weight", (4, 2)))


def test_type_that_cannot_be_decoded() -> None:
    source = reader({"output.weight": np.zeros((4, 2), dtype=np.int64)})
    with pytest.raises(ModelFileError, match="stored as I64, which cannot be decoded"):
        source.matrix(("lm_head.weight", (4, 2)))
