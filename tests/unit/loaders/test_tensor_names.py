"""Parameter names and what the two file kinds call them."""

from __future__ import annotations

import pytest

from luce.loaders.tensor_names import expert_name, gguf_name, safetensors_name, stored_names


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


@pytest.mark.parametrize(
    ("name", "gguf"),
    [
        ("linear_attn.A_log", "ssm_a"),
        ("linear_attn.dt_bias", "ssm_dt.bias"),
        ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
        ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
        ("post_attention_layernorm.weight", "post_attention_norm.weight"),
        ("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"),
        ("mlp.experts.gate_proj.weight", "ffn_gate_exps.weight"),
    ],
)
def test_names_of_a_hybrid(name: str, gguf: str) -> None:
    assert gguf_name(f"layers.3.{name}", "qwen35moe") == f"blk.3.{gguf}"


def test_a_mixture_that_is_no_hybrid_keeps_the_plain_norm() -> None:
    name = "layers.0.post_attention_layernorm.weight"
    assert gguf_name(name, "qwen3moe") == "blk.0.ffn_norm.weight"


def test_experts_in_safetensors() -> None:
    prefix = "layers.0.mlp.experts."
    assert safetensors_name(f"{prefix}gate_up_proj.weight") == f"model.{prefix}gate_up_proj"
    assert safetensors_name(f"{prefix}down_proj.weight") == f"model.{prefix}down_proj"
    single = expert_name(f"{prefix}down_proj.weight", 7)
    assert safetensors_name(single) == "model.layers.0.mlp.experts.7.down_proj.weight"


@pytest.mark.parametrize("prefix", ["model.language_model.", "model.", "language_model.model."])
def test_a_model_that_also_sees_has_its_text_one_level_down(prefix: str) -> None:
    names = [f"{prefix}norm.weight", "model.visual.patch_embed.proj.weight"]
    stored = stored_names("safetensors", "qwen35", names)
    assert stored("norm.weight") == f"{prefix}norm.weight"
    assert stored("lm_head.weight") == "lm_head.weight"
