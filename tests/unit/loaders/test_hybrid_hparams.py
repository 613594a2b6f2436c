"""Hyper-parameters and tensors of hybrids and mixtures: what is read, what is refused and how."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest

from luce.errors import ModelFileError
from luce.loaders.hparams import Experts
from luce.loaders.opening import open_checkpoint
from luce.testing.tiny_models import LINEAR, tiny_qwen3moe, tiny_qwen35, tiny_qwen35moe


def _with_config(folder: Path, inner: bool = False, **changes: Any) -> Path:
    """Change keys of config.json; None takes one out."""
    source = folder / "config.json"
    config = json.loads(source.read_text())
    target = config["text_config"] if inner else config
    for key, value in changes.items():
        target[key] = value
        if value is None:
            del target[key]
    source.write_text(json.dumps(config))
    return folder


def _hybrid(folder: Path, **options: Any) -> Path:
    return tiny_qwen35moe(folder, container="safetensors", **options)


def _rewritten(
    path: Path, out: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> Path:
    """A GGUF file with other keys or tensors."""
    reader = oracle.GGUFReader(path)
    keys = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    values = {name: field.contents() for name, field in keys.items()}
    tensors = {each.name: np.array(each.data) for each in reader.tensors}
    kinds = {name: field.types for name, field in keys.items()}
    change(values, tensors)
    writer = oracle.GGUFWriter(out, values.pop("general.architecture"))
    for name, value in values.items():
        is_flags = isinstance(value, list)
        plain = oracle.GGUFValueType.BOOL if is_flags else oracle.GGUFValueType.UINT32
        made = [oracle.GGUFValueType.ARRAY, plain] if is_flags else [plain]
        types = kinds.get(name, made)
        writer.add_key_value(name, value, types[0], types[1] if len(types) > 1 else None)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize("container", ["gguf", "safetensors"])
def test_a_hybrid_is_the_same_in_both_kinds(tmp_path: Path, container: str) -> None:
    path = tiny_qwen35moe(tmp_path, container=container)
    hparams = open_checkpoint(path).hparams
    linear = hparams.linear_attention
    assert linear is not None
    is_file = container == "gguf"
    assert linear.head_order == ("tiled" if is_file else "grouped")
    assert linear.decay_is_log is not is_file
    assert hparams.norm_is_offset is not is_file
    assert linear.layer_types == LINEAR.layer_types
    assert (linear.num_key_heads, linear.num_value_heads) == (2, 6)
    assert (linear.key_head_dim, linear.value_head_dim, linear.conv_kernel) == (16, 32, 4)
    assert linear.conv_channels == 2 * 2 * 16 + 6 * 32
    assert hparams.gated_attention
    assert hparams.qk_norm
    assert (hparams.rotary_dim, hparams.rotated_dim) == (8, 8)
    assert hparams.num_attention_layers == 1
    assert hparams.experts == Experts(8, 2, 32, 32, True)


def test_drafting_layers_are_counted_and_dropped(tmp_path: Path) -> None:
    for container in ("gguf", "safetensors"):
        opened = open_checkpoint(tiny_qwen35(tmp_path / container, container=container))
        plain = len(list(opened.tensors.names()))
        path = tiny_qwen35(tmp_path / f"m{container}", container=container, num_mtp_layers=1)
        opened = open_checkpoint(path)
        assert opened.hparams.num_layers == 4
        assert opened.hparams.num_mtp_layers == 1
        assert len(list(opened.tensors.names())) == plain


def test_what_is_not_used_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tiny_qwen35(tmp_path, container="safetensors", has_vision=True, num_mtp_layers=1)
    with caplog.at_level("INFO"):
        open_checkpoint(path)
    assert caplog.records[0].skipped == (  # type: ignore[attr-defined]
        "multi-token prediction (15 tensors), vision tower (1 tensors)"
    )


def test_no_mixture_scales_by_default_in_a_folder_but_in_a_file(tmp_path: Path) -> None:
    folder = tiny_qwen3moe(tmp_path / "hf", container="safetensors")
    _with_config(folder, norm_topk_prob=None)
    experts = [
        open_checkpoint(path).hparams.experts for path in (folder, tiny_qwen3moe(tmp_path / "g"))
    ]
    assert [each is not None and each.norm_weights for each in experts] == [False, True]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("linear_num_value_heads", 5, "linear_num_value_heads is 5: .* no multiple of the 2 key"),
        ("linear_num_value_heads", None, "linear_num_value_heads is missing"),
        ("linear_conv_kernel_dim", 1, "it must be 2 at least"),
        ("attn_output_gate", False, "without an output gate"),
        ("layer_types", ["linear_attention"] * 3, "4 layers need a type each"),
        ("layer_types", ["linear_attention"] * 4, "of the kind full_attention"),
        ("layer_types", ["full_attention"] * 4, "of the kind linear_attention"),
        ("layer_types", ["mamba"] * 4, "full_attention and linear_attention"),
        ("num_experts_per_tok", 9, "there are only 8 experts"),
        ("mlp_only_layers", [0], "dense layers among the mixtures"),
        ("decoder_sparse_step", 2, "dense layers among the mixtures"),
        ("norm_topk_prob", False, "supported is true"),
        ("num_hidden_layers", 1 << 30, "a type each|is not supported"),
        ("some_new_feature", 1, "luce does not know this key"),
    ],
)
def test_a_folder_with_a_wrong_value(tmp_path: Path, key: str, value: object, problem: str) -> None:
    changes: dict[str, Any] = {key: value}
    folder = _with_config(_hybrid(tmp_path), **changes)
    with pytest.raises(ModelFileError, match=problem):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("share", "problem"), [(0.26, None), (0.03, "an even part"), (1.5, "an even part")]
)
def test_the_rotated_part_of_a_head(tmp_path: Path, share: float, problem: str | None) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": share}
    folder = _with_config(_hybrid(tmp_path), rope_parameters=rope)
    if problem is None:
        assert open_checkpoint(folder).hparams.rotary_dim == 8
    else:
        with pytest.raises(ModelFileError, match=problem):
            open_checkpoint(folder)


def test_a_model_that_sees_is_checked_at_both_levels(tmp_path: Path) -> None:
    folder = _hybrid(tmp_path / "a", has_vision=True)
    open_checkpoint(folder)
    _with_config(folder, inner=True, attn_output_gate=False)
    with pytest.raises(
        ModelFileError, match=r"config.json: text_config: attn_output_gate is False"
    ):
        open_checkpoint(folder)
    folder = _with_config(_hybrid(tmp_path / "b", has_vision=True), audio_config={"depth": 1})
    with pytest.raises(ModelFileError, match=r"config.json: audio_config .* does not know"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("ssm.time_step_rank", 5, "ssm.inner_size is 192: the 5 value heads do not divide"),
        ("ssm.group_count", 4, "ssm.time_step_rank is 6: .* no multiple of the 4 key heads"),
        ("ssm.group_count", None, "ssm.group_count is missing"),
        ("nextn_predict_layers", 4, "no block is left"),
        ("full_attention_interval", 9, "of the kind full_attention"),
        ("rope.dimension_count", 7, "it must be even"),
        ("rope.dimension_count", 64, "at most 32"),
        ("expert_used_count", 9, "there are only 8 experts"),
        ("expert_gating_func", 2, "supported is softmax"),
        ("a_new_feature", 2, "luce does not know this key"),
    ],
)
def test_a_file_with_a_wrong_value(tmp_path: Path, key: str, value: Any, problem: str) -> None:
    def change(values: dict[str, Any], tensors: dict[str, Any]) -> None:
        del tensors
        values[f"qwen35moe.{key}"] = value
        if value is None:
            del values[f"qwen35moe.{key}"]

    path = _rewritten(tiny_qwen35moe(tmp_path), tmp_path / "changed.gguf", change)
    with pytest.raises(ModelFileError, match=problem):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("blk.0.ssm_a", r"'blk.0.ssm_a' \[6\] is missing"),
        ("blk.3.attn_q.weight", r"'blk.3.attn_q.weight' \[256, 64\] is missing"),
        ("blk.0.ffn_up_exps.weight", r"'blk.0.ffn_up_exps.weight' \[8, 32, 64\] is missing"),
        ("blk.0.ffn_gate_inp_shexp.weight", r"\[64\] is missing"),
    ],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str, problem: str) -> None:
    path = _rewritten(
        tiny_qwen35moe(tmp_path), tmp_path / "less.gguf", lambda _, tensors: tensors.pop(name)
    )
    with pytest.raises(ModelFileError, match=problem):
        open_checkpoint(path)


def test_a_tensor_too_many_is_named(tmp_path: Path) -> None:
    def change(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["blk.0.ssm_d"] = np.zeros(6, dtype=np.float32)

    path = _rewritten(tiny_qwen35(tmp_path), tmp_path / "more.gguf", change)
    with pytest.raises(ModelFileError, match=r"'blk.0.ssm_d' is not part of a qwen35 model"):
        open_checkpoint(path)


def test_plain_attention_in_place_of_gated_is_named(tmp_path: Path) -> None:
    def change(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["blk.3.attn_q.weight"] = np.zeros((128, 64), dtype=np.float32)

    path = _rewritten(tiny_qwen35(tmp_path), tmp_path / "plain.gguf", change)
    with pytest.raises(ModelFileError, match=r"should be \[256, 64\] .* but is \[128, 64\]"):
        open_checkpoint(path)


def test_recurrent_layers_are_followed(tmp_path: Path) -> None:
    """A flag for each layer counts for more than the interval."""

    def change(values: dict[str, Any], _: dict[str, Any]) -> None:
        values["qwen35.full_attention_interval"] = 2
        values["qwen35.attention.recurrent_layers"] = [True, True, True, False]

    path = _rewritten(tiny_qwen35(tmp_path), tmp_path / "flags.gguf", change)
    linear = open_checkpoint(path).hparams.linear_attention
    assert linear is not None
    assert linear.layer_types == LINEAR.layer_types
