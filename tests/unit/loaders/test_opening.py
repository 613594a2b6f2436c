from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest

from luce.errors import ModelFileError
from luce.loaders.hparams import RopeScaling
from luce.loaders.opening import open_checkpoint, read_text_metadata
from luce.loaders.quants import dequantize
from luce.testing.tiny_models import tiny_llama, tiny_qwen2, tiny_qwen3

GgufWith = Callable[..., Path]
BUILDERS = [tiny_llama, tiny_qwen2, tiny_qwen3]


def _error(path: Path) -> str:
    with pytest.raises(ModelFileError) as opened:
        open_checkpoint(path)
    with pytest.raises(ModelFileError) as read:
        read_text_metadata(path)
    assert str(opened.value) == str(read.value)
    assert "\n" not in str(opened.value)
    return str(opened.value)


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied": False, "rope_form": "theta"},
        {"rope_scaling": RopeScaling("yarn", 4.0, 128, beta_fast=8.0), "split": 2},
        {"rope_scaling": RopeScaling("linear", 2.0), "rope_form": "theta", "vocab_size": 320},
    ],
)
def test_both_containers_say_the_same(
    tmp_path: Path, builder: Callable[..., Path], options: dict[str, Any]
) -> None:
    gguf = open_checkpoint(builder(tmp_path / "g", **options)).hparams
    folder = open_checkpoint(builder(tmp_path / "s", container="safetensors", **options)).hparams
    for key in gguf.__dataclass_fields__:
        if key == "rms_norm_eps":
            assert getattr(gguf, key) == pytest.approx(getattr(folder, key))
        elif key == "rope_layout":
            assert folder.rope_layout == "half"
        else:
            assert getattr(gguf, key) == getattr(folder, key), key


def test_the_demo_model(demo_model: Path) -> None:
    checkpoint = open_checkpoint(demo_model)
    assert checkpoint.file_bytes == demo_model.stat().st_size
    assert checkpoint.name == "Smollm2 135M 8k Lc100K Mix1 Ep2"
    theirs = {tensor.name: tensor for tensor in oracle.GGUFReader(demo_model).tensors}
    assert list(checkpoint.tensors.names()) == list(theirs)
    for name in ("blk.0.attn_q.weight", "blk.29.ffn_down.weight", "blk.3.attn_norm.weight"):
        meta = checkpoint.tensors.meta(name)
        ours = dequantize(meta.type, checkpoint.tensors.raw(name), meta.shape)
        expected = oracle.quants.dequantize(theirs[name].data, theirs[name].tensor_type)
        assert np.array_equal(ours, expected)


def test_text_of_the_demo_model(demo_model: Path) -> None:
    text = read_text_metadata(demo_model)
    assert (text.context_length, text.vocab_size) == (8192, 49152)
    assert text.eos_token_ids == (2,)
    assert (text.bos_token, text.eos_token, text.add_bos) == ("<|im_start|>", "<|im_end|>", False)
    assert text.chat_template is not None
    assert "Hugging Face" in text.chat_template
    assert text.gguf_vocab is not None
    assert len(text.gguf_vocab["tokenizer.ggml.merges"]) == 48900
    assert text.tokenizer_json is None
    tensors = open_checkpoint(demo_model).tensors
    assert sum(text.weight_types.values()) == sum(
        tensors.meta(name).nbytes for name in tensors.names()
    )
    assert next(iter(text.weight_types)) == "Q4_1"


def test_no_map_outlives_reading_text(tmp_path: Path) -> None:
    for container in ("gguf", "safetensors"):
        path = tiny_llama(tmp_path / container, container=container)
        text = read_text_metadata(path)
        assert text.vocab_size > 256
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_tensors_keep_the_map_alive(tmp_path: Path) -> None:
    raw = open_checkpoint(tiny_llama(tmp_path)).tensors.raw("output_norm.weight")
    assert raw.view(np.float32).size == 64
    assert not raw.flags.writeable


def test_paths_that_are_no_models(tmp_path: Path) -> None:
    assert "there is no such file or folder" in _error(tmp_path / "absent.gguf")
    assert "is a folder without config.json" in _error(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(16))
    assert "name the folder" in _error(weights)
    text = tmp_path / "x.gguf"
    text.write_text("Hello there, this is text")
    assert "is not a GGUF file" in _error(text)
    assert "a\0b: cannot be read: embedded null byte" in _error(tmp_path / "a\0b")
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in _error(tmp_path / "pipe.gguf")
    assert "cannot be read" in _error(tmp_path / ("x" * 300))


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.5, 0.999999])
def test_truncated_downloads(tmp_path: Path, demo_model: Path, share: float) -> None:
    cut = tmp_path / "cut.gguf"
    size = int(demo_model.stat().st_size * share)
    with demo_model.open("rb") as stream:
        cut.write_bytes(stream.read(size))
    message = _error(cut)
    assert "cut.gguf" in message
    assert f"{size}" in message or "0 bytes" in message


def test_a_missing_tensor_is_named(gguf_with: GgufWith) -> None:
    path = gguf_with(tensors={"blk.0.attn_k.weight": None})
    assert "tensor 'blk.0.attn_k.weight' [16, 32] is missing" in _error(path)


def test_more_layers_promised_than_there_are(gguf_with: GgufWith) -> None:
    path = gguf_with(entries={"llama.block_count": (10, 2**40)})
    assert "tensor 'blk.1.attn_norm.weight' [32] is missing" in _error(path)


def test_a_tensor_of_another_shape(gguf_with: GgufWith) -> None:
    path = gguf_with(tensors={"blk.0.ffn_up.weight": (64, 32)})
    assert "'blk.0.ffn_up.weight' should be [64, 32]" in _error(path)
    assert "but is [32, 64]" in _error(path)


def test_a_tensor_that_would_be_ignored(gguf_with: GgufWith) -> None:
    path = gguf_with(tensors={"blk.0.attn_q.bias": (32,)})
    assert "tensor 'blk.0.attn_q.bias' is not part of a llama model of 1 layers" in _error(path)


def test_llama3_factors_are_part_of_the_model(gguf_with: GgufWith) -> None:
    assert open_checkpoint(gguf_with(tensors={"rope_freqs.weight": (4,)})).tensors
    wrong = gguf_with(tensors={"rope_freqs.weight": (8,)})
    assert "'rope_freqs.weight' should be [4]" in _error(wrong)


@pytest.mark.parametrize(("type_id", "name"), [(26, "I32"), (101, "Q4_0_ROCMFP4_FAST")])
def test_a_type_nothing_computes_with(gguf_with: GgufWith, type_id: int, name: str) -> None:
    path = gguf_with(types={"blk.0.attn_q.weight": type_id})
    assert f"'blk.0.attn_q.weight' has type {name}, which luce cannot compute" in _error(path)


def test_a_damaged_config_json(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, container="safetensors")
    config = folder / "config.json"
    good = json.loads(config.read_text())
    for text, expected in (
        ("", "is empty"),
        ("{", "is not valid JSON"),
        ("[]", "must be a JSON object, not list"),
        (json.dumps(good)[:-9], "is not valid JSON"),
        (json.dumps(good | {"rms_norm_eps": float("nan")}), "NaN is not a JSON number"),
        (json.dumps(good | {"vocab_size": 300}), "should be [300, 64]"),
        (json.dumps(good | {"num_hidden_layers": 4}), "'model.layers.3.input_layernorm.weight'"),
        (json.dumps(good | {"num_hidden_layers": 2}), "not part of a llama model of 2 layers"),
        (json.dumps(good | {"tie_word_embeddings": False}), "'lm_head.weight' [288, 64] is miss"),
    ):
        config.write_text(text)
        assert expected in _error(folder)


def test_what_writers_add_is_ignored(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tiny_llama(tmp_path, container="safetensors")
    arrays = load_file(folder / "model.safetensors")
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(16, dtype=np.float32)
    save_file(arrays, folder / "model.safetensors")
    assert open_checkpoint(folder).hparams.tie_word_embeddings
