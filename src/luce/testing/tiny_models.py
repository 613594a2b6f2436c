"""Tiny random models of each family, written as real GGUF or Hugging Face checkpoints.

The same seed gives the same weights in either container, so that both can be compared with
each other and with a reference implementation that loads the safetensors folder.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from luce.loaders.hparams import Experts, LayerType, LinearAttention
from luce.testing.tiny_gguf import write_gguf
from luce.testing.tiny_safetensors import write_hf_folder
from luce.testing.tiny_weights import TinyConfig, TinyFormat, random_weights

LLAMA = TinyConfig(family="llama")
QWEN2 = TinyConfig(family="qwen2", head_dim=16, rope_theta=1e6, rms_norm_eps=1e-6)
QWEN3 = TinyConfig(family="qwen3", rope_theta=1e6, rms_norm_eps=1e-6, tied=False)

_PATTERN: tuple[LayerType, ...] = ("linear_attention",) * 3 + ("full_attention",)
# Fewer key heads than value heads, of another size: what confuses them cannot pass.
LINEAR = LinearAttention(
    layer_types=_PATTERN,
    num_key_heads=2,
    num_value_heads=6,
    key_head_dim=16,
    value_head_dim=32,
    conv_kernel=4,
    head_order="grouped",
    decay_is_log=True,
)
EXPERTS = Experts(num_experts=8, num_per_token=2, size=32, shared_size=32, norm_weights=True)
QWEN35 = TinyConfig(
    family="qwen35",
    num_layers=4,
    rope_theta=1e7,
    rms_norm_eps=1e-6,
    rotary_dim=8,
    linear=LINEAR,
)
QWEN35MOE = replace(QWEN35, family="qwen35moe", experts=EXPERTS)
QWEN3MOE = replace(
    QWEN3, family="qwen3moe", experts=replace(EXPERTS, size=64, shared_size=0), experts_as="single"
)


def tiny_model(
    folder: Path, config: TinyConfig, storage: TinyFormat | None = None, *, seed: int = 0
) -> Path:
    """Write a tiny model below `folder`, which is made if need be.

    Returns:
        The GGUF file (the first of a split) or the Hugging Face folder.
    """
    storage = storage or TinyFormat()
    folder.mkdir(parents=True, exist_ok=True)
    weights = random_weights(config, seed)
    if storage.container == "gguf":
        return write_gguf(folder, config, storage, weights)
    return write_hf_folder(folder, config, storage, weights)


def _tiny(folder: Path, config: TinyConfig, seed: int, options: dict[str, Any]) -> Path:
    names = TinyFormat.__dataclass_fields__
    storage = TinyFormat(**{key: options.pop(key) for key in list(options) if key in names})
    return tiny_model(folder, replace(config, **options), storage, seed=seed)


def tiny_llama(folder: Path, *, seed: int = 0, **options: Any) -> Path:
    """Write a tiny Llama; `options` are fields of `TinyConfig` and `TinyFormat`."""
    return _tiny(folder, LLAMA, seed, options)


def tiny_qwen2(folder: Path, *, seed: int = 0, **options: Any) -> Path:
    """Write a tiny Qwen2; `options` are fields of `TinyConfig` and `TinyFormat`."""
    return _tiny(folder, QWEN2, seed, options)


def tiny_qwen3(folder: Path, *, seed: int = 0, **options: Any) -> Path:
    """Write a tiny Qwen3; `options` are fields of `TinyConfig` and `TinyFormat`."""
    return _tiny(folder, QWEN3, seed, options)


def tiny_qwen3moe(folder: Path, *, seed: int = 0, **options: Any) -> Path:
    """Write a tiny Qwen3 mixture of experts; as above."""
    return _tiny(folder, QWEN3MOE, seed, options)


def tiny_qwen35(folder: Path, *, seed: int = 0, **options: Any) -> Path:
    """Write a tiny Qwen3.5 hybrid; as above."""
    return _tiny(folder, QWEN35, seed, options)


def tiny_qwen35moe(folder: Path, *, seed: int = 0, **options: Any) -> Path:
    """Write a tiny Qwen3.5 hybrid with a mixture of experts; as above."""
    return _tiny(folder, QWEN35MOE, seed, options)
