"""A one-layer GGUF model of each family, with any key or tensor changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from luce.testing import gguf_bytes as gb
from luce.testing.gguf_bytes import GgufBytes, entry, tensor

Entry = tuple[int, object] | None
Dims = tuple[int, ...] | None
GgufWith = Callable[..., Path]


def _entries(architecture: str) -> dict[str, Entry]:
    keys: dict[str, Entry] = {
        "context_length": (gb.UINT32, 128),
        "embedding_length": (gb.UINT32, 32),
        "block_count": (gb.UINT32, 1),
        "feed_forward_length": (gb.UINT32, 64),
        "attention.head_count": (gb.UINT32, 4),
        "attention.head_count_kv": (gb.UINT32, 2),
        "attention.layer_norm_rms_epsilon": (gb.FLOAT32, 0.5),
        "rope.freq_base": (gb.FLOAT32, 5000.0),
    }
    tokens = ["<s>", "</s>", "a", "b"]
    return {
        "general.architecture": (gb.STRING, architecture),
        "general.name": (gb.STRING, "One layer"),
        **{f"{architecture}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.model": (gb.STRING, "gpt2"),
        "tokenizer.ggml.pre": (gb.STRING, "smollm"),
        "tokenizer.ggml.tokens": (gb.ARRAY, (gb.STRING, tokens)),
        "tokenizer.ggml.merges": (gb.ARRAY, (gb.STRING, ["a b"])),
        "tokenizer.ggml.bos_token_id": (gb.UINT32, 0),
        "tokenizer.ggml.eos_token_id": (gb.UINT32, 1),
        "tokenizer.chat_template": (gb.STRING, "{{ messages }}"),
    }


def _tensors(architecture: str) -> dict[str, Dims]:
    block = {
        "attn_norm.weight": (32,),
        "attn_q.weight": (32, 32),
        "attn_k.weight": (32, 16),
        "attn_v.weight": (32, 16),
        "attn_output.weight": (32, 32),
        "ffn_norm.weight": (32,),
        "ffn_gate.weight": (32, 64),
        "ffn_up.weight": (32, 64),
        "ffn_down.weight": (64, 32),
    }
    if architecture == "qwen2":
        block |= {"attn_q.bias": (32,), "attn_k.bias": (16,), "attn_v.bias": (16,)}
    if architecture == "qwen3":
        block |= {"attn_q_norm.weight": (8,), "attn_k_norm.weight": (8,)}
    top: dict[str, Dims] = {"token_embd.weight": (32, 6), "output_norm.weight": (32,)}
    return top | {f"blk.0.{name}": dims for name, dims in block.items()}


@pytest.fixture
def gguf_with(tmp_path: Path) -> GgufWith:
    """Write the model; `entries` and `tensors` add, replace or (None) remove."""

    def write(
        architecture: str = "llama",
        *,
        entries: Mapping[str, Entry] | None = None,
        tensors: Mapping[str, Dims] | None = None,
        types: Mapping[str, int] | None = None,
    ) -> Path:
        keys = _entries(architecture) | dict(entries or {})
        shapes = _tensors(architecture) | dict(tensors or {})
        built = GgufBytes(entries=[entry(key, *value) for key, value in keys.items() if value])
        offset = 0
        for name, dims in shapes.items():
            if dims is not None:
                built.tensors.append(tensor(name, dims, (types or {}).get(name, 0), offset))
                offset += -(-math.prod(dims) * 4 // 32) * 32
        built.data = bytes(offset)
        path = tmp_path / "model.gguf"
        path.write_bytes(built.build())
        return path

    return write
