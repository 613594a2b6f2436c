"""Tiny random models of each family, written as real GGUF or Hugging Face checkpoints.

The same seed gives the same weights in either container, so that both can be compared with
each other and with a reference implementation that loads the safetensors folder.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from luce.testing.tiny_gguf import write_gguf
from luce.testing.tiny_safetensors import write_hf_folder
from luce.testing.tiny_weights import TinyConfig, TinyFormat, random_weights

LLAMA = TinyConfig(family="llama")
QWEN2 = TinyConfig(family="qwen2", head_dim=16, rope_theta=1e6, rms_norm_eps=1e-6)
QWEN3 = TinyConfig(family="qwen3", rope_theta=1e6, rms_norm_eps=1e-6, tied=False)


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
