from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from luce.errors import ModelFileError
from luce.loaders.hf_hparams import hf_hparams
from luce.loaders.hparams import HParams, RopeScaling

SOURCE = Path("m/config.json")


def _config(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": architecture,
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 160,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "tie_word_embeddings": True,
    }
    if architecture == "qwen3":
        config["head_dim"] = 32
    merged = config | changes
    return {key: value for key, value in merged.items() if value != "REMOVED"}


def _read(architecture: str = "llama", **changes: Any) -> HParams:
    return hf_hparams(_config(architecture, **changes), SOURCE)


def test_each_family() -> None:
    llama, qwen2, qwen3 = _read("llama"), _read("qwen2"), _read("qwen3")
    assert (llama.head_dim, qwen2.head_dim, qwen3.head_dim) == (16, 16, 32)
    assert [model.attention_bias for model in (llama, qwen2, qwen3)] == [False, True, False]
    assert [model.qk_norm for model in (llama, qwen2, qwen3)] == [False, False, True]
    assert {model.rope_layout for model in (llama, qwen2, qwen3)} == {"half"}
    assert llama.rope_theta == 10000.0
    assert isinstance(llama.rope_theta, float)


def test_smollm2_config_as_published() -> None:
    found = _read(
        architectures=["LlamaForCausalLM"],
        attention_bias=False,
        attention_dropout=0.0,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        initializer_range=0.041666666666666664,
        is_llama_config=True,
        mlp_bias=False,
        pretraining_tp=1,
        rope_interleaved=False,
        rope_scaling=None,
        torch_dtype="bfloat16",
        transformers_version="4.42.3",
        use_cache=True,
        **{"transformers.js_config": {"dtype": "fp16"}},
    )
    assert found.rope_scaling is None


def test_qwen_config_with_its_window_switched_off() -> None:
    found = _read(
        "qwen2",
        use_sliding_window=False,
        sliding_window=64,
        max_window_layers=21,
        layer_types=["full_attention"] * 3,
    )
    assert found.architecture == "qwen2"


def test_what_transformers_writes_is_understood() -> None:
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    for config_class in (LlamaConfig, Qwen2Config, Qwen3Config):
        config = config_class(num_hidden_layers=2).to_dict()
        assert hf_hparams(config, SOURCE).num_layers == 2


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 2}, RopeScaling("linear", 2.0)),
        (LLAMA3, RopeScaling("llama3", 32.0, 8192, 1.0, 4.0)),
        (YARN, RopeScaling("yarn", 4.0, 128)),
        ({"rope_type": "yarn", "factor": 4.0}, RopeScaling("yarn", 4.0, 512)),
        (
            YARN | {"attention_factor": 1.5, "beta_fast": 8, "beta_slow": 2, "truncate": True},
            RopeScaling("yarn", 4.0, 128, beta_fast=8.0, beta_slow=2.0, attention_factor=1.5),
        ),
    ],
)
def test_rope_scaling_in_both_spellings(
    section: dict[str, Any], expected: RopeScaling | None
) -> None:
    old = _read(rope_theta=5e5, rope_scaling=section)
    new = _read(rope_theta="REMOVED", rope_parameters={"rope_theta": 5e5, **section})
    assert old.rope_scaling == new.rope_scaling == expected
    assert old.rope_theta == new.rope_theta == 5e5


def test_yarn_magnitude_from_mscale() -> None:
    scaling = _read(rope_scaling=YARN | {"mscale": 2.0, "mscale_all_dim": 1.0}).rope_scaling
    assert scaling is not None
    expected = (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)
    assert scaling.attention_factor == pytest.approx(expected)


def test_first_llama_configs_lack_keys_that_had_one_value() -> None:
    found = _read(rope_theta="REMOVED", num_key_value_heads="REMOVED")
    assert (found.rope_theta, found.num_kv_heads) == (10000.0, 4)


@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        ("llama", "vocab_size"),
        ("llama", "hidden_size"),
        ("llama", "intermediate_size"),
        ("llama", "num_hidden_layers"),
        ("llama", "num_attention_heads"),
        ("llama", "max_position_embeddings"),
        ("llama", "rms_norm_eps"),
        ("llama", "hidden_act"),
        ("qwen2", "num_key_value_heads"),
        ("qwen2", "rope_theta"),
        ("qwen3", "head_dim"),
        ("llama", "model_type"),
    ],
)
def test_a_missing_key_is_named(architecture: str, key: str) -> None:
    for value in ("REMOVED", None):
        with pytest.raises(ModelFileError, match=rf"m/config.json: {key} is missing"):
            _read(architecture, **{key: value})


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("hidden_size", "64", "must be a whole number"),
        ("hidden_size", 64.0, "must be a whole number"),
        ("hidden_size", -1, "out of range"),
        ("vocab_size", 10**30, "out of range"),
        ("num_attention_heads", 6, "does not divide hidden_size 64"),
        ("num_key_value_heads", 3, "does not divide the 4 heads"),
        ("rms_norm_eps", 0, "out of range"),
        ("rms_norm_eps", [1e-5], "must be a number"),
        ("tie_word_embeddings", "yes", "true or false"),
        ("hidden_act", "gelu", "supported is silu"),
        ("attention_bias", True, "bias is not supported"),
        ("mlp_bias", True, "biases"),
        ("model_type", "qwen3_next", "not supported .supported: llama, qwen2, qwen3"),
        ("max_position_embeddings", 15, "it must be 16 at least"),
        ("rope_theta", 1.0, "it must be above 1"),
        ("rope_theta", [1e4, 1e4], "it must be a number"),
        ("architectures", "LlamaForCausalLM", "it must be a list of strings"),
        ("sliding_window", [1, 2], "it must be a whole number"),
        ("model_type", ["llama"], "it must be a string"),
        ("model_type", 7, "is 7: it must be a string"),
        ("architectures", ["LlamaForSequenceClassification"], "supported is LlamaForCausalLM"),
        ("sliding_window", 64, "sliding windows are not supported"),
        ("layer_types", ["full_attention", "sliding_attention"], "differ from layer to layer"),
        ("layer_types", ["sliding_attention"] * 3, "full_attention throughout"),
        ("rope_scaling", "linear", "must be an object"),
        ("partial_rotary_factor", 0.5, "partial rotary"),
        ("rope_interleaved", True, "interleaved"),
        ("quantization_config", {"quant_method": "gptq"}, "luce does not know this key"),
        ("residual_multiplier", 0.2, "luce does not know this key"),
    ],
)
def test_a_wrong_value_is_named(key: str, value: object, problem: str) -> None:
    with pytest.raises(ModelFileError, match=rf"m/config.json: {key} .*{problem}"):
        _read(**{key: value})


def test_an_enabled_window_is_refused_and_a_long_one_is_not() -> None:
    with pytest.raises(ModelFileError, match="sliding_window is 64"):
        _read("qwen3", use_sliding_window=True, sliding_window=64)
    assert _read("qwen3", use_sliding_window=True, sliding_window=512).num_layers == 3


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type is 'dynamic'"),
        ({"type": "longrope"}, "type is 'longrope'"),
        ({"rope_type": "linear"}, "factor is missing"),
        ({"rope_type": "linear", "factor": "2"}, "factor is '2'"),
        ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor is missing"),
        ({**LLAMA3, "high_freq_factor": 0.5}, "high_freq_factor is 0.5"),
        ({**YARN, "truncate": False}, "truncate is False"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "mrope_section is"),
        ({"rope_type": "default", "partial_rotary_factor": 0.25}, "partial_rotary_factor is 0.25"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention is"),
    ],
)
def test_rope_sections_that_are_refused(section: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelFileError, match=rf"config.json: rope_scaling: {expected}"):
        _read(rope_scaling=section)


def test_both_rope_spellings_at_once() -> None:
    with pytest.raises(ModelFileError, match="one of them is expected"):
        _read(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_theta": 1e4})


def test_an_odd_head_dimension() -> None:
    with pytest.raises(ModelFileError, match="head_dim 15 is odd"):
        _read(head_dim=15)
