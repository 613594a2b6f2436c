"""From stored tensors to parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from luce.engine import weights as module
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.weights import WeightReader
from luce.errors import ModelFileError
from luce.loaders.checkpoint import Checkpoint, Container, TensorMeta
from luce.loaders.hparams import HParams
from luce.testing.quant_blocks import random_blocks

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


def test_matrices_that_stay_as_stored_count_as_read() -> None:
    events: list[tuple[str, int, int]] = []
    source = reader(
        {"output.weight": values(4, 4), "blk.0.ffn_up.weight": values(2, 4)}, events=events
    )
    source.stored(("lm_head.weight", (4, 4)))
    source.stored(("layers.0.mlp.up_proj.weight", (2, 4)))
    assert [done for _, done, _ in events] == [64, 96]
    assert {total for _, _, total in events} == {96}


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


class Typed(Stored):
    """Matrices of stored blocks beside what `Stored` holds."""

    def __init__(self, blocks: Mapping[str, tuple[str, torch.Tensor, tuple[int, ...]]]) -> None:
        super().__init__({})
        self.blocks = blocks

    def names(self) -> Iterator[str]:
        return iter(self.blocks)

    def meta(self, name: str) -> TensorMeta:
        kind, raw, shape = self.blocks[name]
        return TensorMeta(name, kind, shape, raw.numel())

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        return self.blocks[name][1].numpy()


def typed_reader(**kinds: tuple[str, int, int]) -> WeightReader:
    """q, k, v and so on of layer 0, each of random blocks of (type, rows, columns)."""
    generator = torch.Generator().manual_seed(1)
    blocks = {
        f"blk.0.attn_{name}.weight": (
            kind,
            random_blocks(kind, rows, columns, generator),
            (rows, columns),
        )
        for name, (kind, rows, columns) in kinds.items()
    }
    hparams = HParams.__new__(HParams)
    checkpoint = Checkpoint("gguf", "llama", "x", hparams, Typed(blocks), 0)
    return WeightReader(checkpoint, torch.float32, CPU, lambda *_: None)


def parts_of(**rows: int) -> list[tuple[str, tuple[int, int]]]:
    return [(f"layers.0.self_attn.{n}_proj.weight", (count, 512)) for n, count in rows.items()]


def test_quantised_parts_of_one_type_are_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PLANE_PIECE_ELEMENTS", 512 * 3)
    source = typed_reader(q=("Q4_K", 8, 512), k=("Q4_K", 5, 512), v=("Q6_K", 7, 512))
    parts = parts_of(q=8, k=5, v=7)
    planes = source.quantised(*parts)
    assert planes is not None
    assert [(p.format.name, p.rows) for p in planes] == [("Q4_K", 13), ("Q6_K", 7)]
    assert torch.equal(torch.cat([decode(p) for p in planes]), source.matrix(*parts))


def test_parts_that_cannot_all_stay_quantised() -> None:
    source = reader({"blk.0.attn_q.weight": values(4, 512)})
    assert source.quantised(*parts_of(q=4)) is None


@pytest.mark.parametrize(("kind", "columns"), [("Q4_K", 256), ("Q8_0", 544), ("Q5_1", 32)])
def test_any_whole_number_of_blocks_stays_quantised(kind: str, columns: int) -> None:
    source = typed_reader(q=(kind, 4, columns))
    shaped = ("layers.0.self_attn.q_proj.weight", (4, columns))
    planes = source.quantised(shaped)
    assert planes is not None
    assert torch.equal(decode(planes[0]), source.matrix(shaped))


def test_a_part_of_another_width_is_refused() -> None:
    source = typed_reader(q=("Q4_K", 8, 512))
    with pytest.raises(ModelFileError, match=r"is \[8, 512\], but \[9, 512\] is expected"):
        source.quantised(*parts_of(q=9))


def experts_reader(gate: str, up: str, down: str) -> WeightReader:
    """Three experts of 64 rows of 256 columns, stacked as GGUF files have them."""
    generator = torch.Generator().manual_seed(2)
    kinds = {"gate": (gate, 64, 256), "up": (up, 64, 256), "down": (down, 256, 64)}
    blocks = {
        f"blk.0.ffn_{name}_exps.weight": (
            kind,
            random_blocks(kind, 3 * rows, columns, generator),
            (3, rows, columns),
        )
        for name, (kind, rows, columns) in kinds.items()
    }
    hparams = HParams.__new__(HParams)
    checkpoint = Checkpoint("gguf", "qwen3moe", "x", hparams, Typed(blocks), 0)
    return WeightReader(checkpoint, torch.float32, CPU, lambda *_: None)


EXPERTS = "layers.0.mlp.experts.", (3, 64, 256)


def test_quantised_experts_are_those_that_would_be_decoded() -> None:
    source = experts_reader("Q4_K", "Q4_K", "Q8_0")
    planes = source.quantised_experts(*EXPERTS)
    assert planes is not None
    assert [each.format.name for each in planes] == ["Q4_K", "Q8_0"]
    gate_up, down = source.experts(*EXPERTS)
    assert torch.equal(decode(planes[0]).view(gate_up.shape), gate_up)
    assert torch.equal(decode(planes[1]).view(down.shape), down)


def test_experts_of_two_types_or_without_planes_are_decoded() -> None:
    assert experts_reader("Q4_K", "Q6_K", "Q8_0").quantised_experts(*EXPERTS) is None
    shapes = {"gate": (3, 64, 256), "up": (3, 64, 256), "down": (3, 256, 64)}
    plain = {f"blk.0.ffn_{name}_exps.weight": values(*shape) for name, shape in shapes.items()}
    assert reader(plain).quantised_experts(*EXPERTS) is None
