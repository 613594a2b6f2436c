"""Qwen3.5 hybrids and mixtures of experts against transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import (
    all_logits,
    load_engine,
    mixed_logits,
    random_ids,
    relative_error,
    start_row,
)
from reference import reference_logits, reference_model

from luce.engine.context import ForwardContext
from luce.engine.engine import Engine
from luce.engine.inputs import build_inputs
from luce.engine.models.dense import DenseModel
from luce.engine.ops.gated_delta import StateBatch
from luce.engine.ops.qkv import TokenPlaces
from luce.loaders.opening import open_checkpoint
from luce.scheduler.plan import ScheduledSequence
from luce.testing.tiny_models import LINEAR, tiny_qwen3moe, tiny_qwen35, tiny_qwen35moe

TOLERANCE = 1e-4
FAMILIES = {"qwen35": tiny_qwen35, "qwen35moe": tiny_qwen35moe, "qwen3moe": tiny_qwen3moe}
TOKENS = 75
BLOCKS = [7, 2, 11, 5, 3]
MANY_BLOCKS = list(range(1, 30))
REFERENCE_CHUNK = 64


@pytest.mark.parametrize("quant", ["F32", "Q8_0"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(tmp_path: Path, family: str, tied: bool, quant: str) -> None:
    """GGUF and safetensors of the same weights against transformers on the latter."""
    make = FAMILIES[family]
    folder = make(tmp_path / "hf", container="safetensors", quant=quant, tied=tied)
    file = make(tmp_path / "gguf", quant=quant, tied=tied)
    ids = random_ids(TOKENS, 280, seed=1)
    expected = reference_logits(reference_model(folder), ids)
    assert expected.std() > 0.1, "logits too flat to prove anything"
    for path in (folder, file):
        found = all_logits(load_engine(path, cpu_exact=True), ids, [TOKENS], BLOCKS)
        assert relative_error(found, expected) < TOLERANCE, path


@pytest.mark.parametrize("heads", [(1, 3), (2, 2), (3, 6)])
def test_key_and_value_heads(tmp_path: Path, heads: tuple[int, int]) -> None:
    """Both orders of heads, for every way in which key heads may be shared."""
    linear = replace(LINEAR, num_key_heads=heads[0], num_value_heads=heads[1])
    folder = tiny_qwen35(tmp_path / "hf", container="safetensors", linear=linear)
    file = tiny_qwen35(tmp_path / "gguf", linear=linear)
    ids = random_ids(TOKENS, 280, seed=4)
    expected = reference_logits(reference_model(folder), ids)
    for path in (folder, file):
        found = all_logits(load_engine(path), ids, [TOKENS], BLOCKS)
        assert relative_error(found, expected) < TOLERANCE, path


@pytest.mark.parametrize(
    "options",
    [{"experts_as": "single"}, {"experts_as": "fused"}, {"has_vision": True, "num_mtp_layers": 1}],
)
def test_forms_of_a_folder(tmp_path: Path, options: dict[str, Any]) -> None:
    """Experts one by one or together, the language model alone or inside one that also sees."""
    ids = random_ids(20, 280, seed=5)
    plain = all_logits(load_engine(tiny_qwen35moe(tmp_path / "gguf")), ids, [20], BLOCKS)
    folder = tiny_qwen35moe(tmp_path / "hf", container="safetensors", **options)
    found = all_logits(load_engine(folder), ids, [20], BLOCKS)
    assert relative_error(found, plain) < TOLERANCE


def test_drafting_layers_of_a_file_change_nothing(tmp_path: Path) -> None:
    ids = random_ids(20, 280, seed=5)
    plain = all_logits(load_engine(tiny_qwen35(tmp_path / "plain")), ids, [20], BLOCKS)
    path = tiny_qwen35(tmp_path / "mtp", num_mtp_layers=1)
    assert open_checkpoint(path).hparams.num_layers == 4
    assert torch.equal(all_logits(load_engine(path), ids, [20], BLOCKS), plain)


@pytest.mark.parametrize("layer_types", [["full_attention", "linear_attention"] * 2])
def test_a_list_of_layer_types_is_followed(tmp_path: Path, layer_types: list[Any]) -> None:
    linear = replace(LINEAR, layer_types=tuple(layer_types))
    folder = tiny_qwen35(tmp_path, container="safetensors", linear=linear)
    ids = random_ids(20, 280, seed=5)
    expected = reference_logits(reference_model(folder), ids)
    assert relative_error(all_logits(load_engine(folder), ids, [20], BLOCKS), expected) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_of_each_layer(tmp_path: Path, family: str) -> None:
    folder = FAMILIES[family](tmp_path, container="safetensors")
    ids = random_ids(40, 280, seed=6)
    model = reference_model(folder)
    with torch.inference_mode():
        outputs = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    expected = [each[0] for each in outputs.hidden_states]
    found = _hidden_states(load_engine(folder), ids)
    assert len(found) == len(expected)
    for layer, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert relative_error(ours, theirs) < TOLERANCE, layer


def _hidden_states(engine: Engine, ids: list[int]) -> list[torch.Tensor]:
    """The embedding, what each layer but the last leaves, and the normalised end."""
    runner, model = engine._runner, engine._runner.model
    assert isinstance(model, DenseModel)
    item = ScheduledSequence(0, 0, tuple(ids), tuple(BLOCKS), sample=True)
    with torch.inference_mode():
        batch = build_inputs([item], engine._rows, 16, torch.device("cpu"))
        context = ForwardContext(
            places=TokenPlaces(model.rotary(batch.positions), batch.slot_mapping),
            attend=runner.attention.prepare(batch.attention),
            kv_layers=runner.kv.layers,
            states=StateBatch(batch.rows, batch.attention.query_starts),
            state_layers=runner.states.layers if runner.states is not None else (),
        )
        hidden = [model._embedding.forward(batch.input_ids)]
        for layer in model._layers:
            hidden.append(layer.forward(hidden[-1].clone(), context))
        hidden[-1] = model._norm.forward(hidden[-1])
    return hidden


@pytest.mark.parametrize(
    "chunks", [[41, 14, *[1] * 20], [1] * TOKENS, [1, 2, 3, 63, 6], [64, 11], [65, 10]]
)
@pytest.mark.parametrize("family", ["qwen35", "qwen35moe"])
def test_chunks_equal_one_shot(tmp_path: Path, family: str, chunks: list[int]) -> None:
    folder = FAMILIES[family](tmp_path, container="safetensors")
    ids = random_ids(TOKENS, 280, seed=2)
    expected = reference_logits(reference_model(folder), ids)
    found = all_logits(load_engine(folder), ids, chunks, BLOCKS)
    assert relative_error(found, expected) < TOLERANCE


def _decode_after(tmp_path: Path, lengths: range) -> None:
    """A prefill of each length, then 200 decode steps, against the whole in one shot."""
    folder = tiny_qwen35(tmp_path / "hf", container="safetensors")
    model = reference_model(folder)
    engines = [load_engine(folder), load_engine(tiny_qwen35(tmp_path / "gguf"))]
    for length in lengths:
        ids = random_ids(length + 200, 280, seed=length)
        expected = reference_logits(model, ids)
        for engine in engines:
            found = all_logits(engine, ids, [length] + [1] * 200, MANY_BLOCKS)
            assert relative_error(found, expected) < TOLERANCE, length


def test_decode_after_some_prefills(tmp_path: Path) -> None:
    _decode_after(tmp_path, range(1, REFERENCE_CHUNK + 2, 32))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_decode_after_prefills_of_every_length(tmp_path: Path) -> None:
    _decode_after(tmp_path, range(1, REFERENCE_CHUNK + 2))


@pytest.mark.parametrize("family", ["qwen35", "qwen35moe"])
def test_a_checkpoint_goes_on_as_its_row_did(tmp_path: Path, family: str) -> None:
    """Saved in the middle of a prompt, restored into a row that held something else."""
    engine = load_engine(FAMILIES[family](tmp_path), num_checkpoints=3)
    ids = random_ids(50, 280, seed=8)
    whole = all_logits(engine, ids, [20, 30], BLOCKS)
    first = ScheduledSequence(0, 0, tuple(ids[:20]), tuple(BLOCKS), sample=True, save_checkpoint=2)
    _run(engine, first)
    _run(engine, ScheduledSequence(4, 0, (5, 6, 7), (9,), sample=True))
    start_row(engine, 4, 2)
    rest = _run(engine, ScheduledSequence(4, 20, tuple(ids[20:]), tuple(BLOCKS), sample=True))
    assert torch.equal(rest, whole[20:])


def _run(engine: Engine, item: ScheduledSequence) -> torch.Tensor:
    return mixed_logits(engine, [item])[0]


def test_an_engine_without_states_says_so(tmp_path: Path) -> None:
    resolved = load_engine(tiny_qwen3moe(tmp_path), num_checkpoints=3).resolved
    assert resolved.state is None
    assert (resolved.num_checkpoints, resolved.state_bytes) == (0, 0)


def test_an_engine_with_states_counts_them(tmp_path: Path) -> None:
    resolved = load_engine(tiny_qwen35(tmp_path), num_checkpoints=3, max_concurrency=2).resolved
    assert resolved.state is not None
    conv, recurrent = 3 * (2 * 2 * 16 + 6 * 32), 6 * 16 * 32
    assert resolved.state.bytes_per_slot == 3 * 4 * (conv + recurrent)
    assert resolved.num_checkpoints == 3
    # Rows, checkpoints, and one for lanes that compute nothing.
    assert resolved.state_bytes == (2 + 3 + 1) * resolved.state.bytes_per_slot
