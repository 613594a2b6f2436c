"""Which tensors a model must have, with their shapes, and the check of a checkpoint's against it.

Done before anything is read, so that a damaged or foreign file is one clear error instead of
a fault at first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from luce.errors import ModelFileError
from luce.loaders.checkpoint import Container
from luce.loaders.hparams import HParams
from luce.loaders.mapped import MappedTensors
from luce.loaders.quants import DEQUANTIZERS

Shape = tuple[int, ...]
_NAMES: dict[Container, dict[str, str]] = {
    "gguf": {
        "embedding": "token_embd",
        "norm": "output_norm",
        "head": "output",
        "block": "blk",
        "attention_norm": "attn_norm",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "mlp_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    },
    "safetensors": {
        "embedding": "model.embed_tokens",
        "norm": "model.norm",
        "head": "lm_head",
        "block": "model.layers",
        "attention_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "o": "self_attn.o_proj",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
}
# Stored by some writers though they can be computed, or copies of tied tensors.
_IGNORED = re.compile(r"(model\.layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq|lm_head\.weight")
_LLAMA3_FACTORS = "rope_freqs.weight"


def expected_tensors(container: Container, hparams: HParams) -> Iterator[tuple[str, Shape]]:
    """Name and torch-order shape of every tensor the model is computed from."""
    names = _NAMES[container]
    vocabulary = (hparams.vocab_size, hparams.hidden_size)
    yield f"{names['embedding']}.weight", vocabulary
    yield f"{names['norm']}.weight", (hparams.hidden_size,)
    if not hparams.tie_word_embeddings:
        yield f"{names['head']}.weight", vocabulary
    block = _block_shapes(hparams)
    for layer in range(hparams.num_layers):
        for (part, kind), shape in block.items():
            yield f"{names['block']}.{layer}.{names[part]}.{kind}", shape


def _block_shapes(hparams: HParams) -> dict[tuple[str, str], Shape]:
    hidden, ffn = hparams.hidden_size, hparams.intermediate_size
    q_rows = hparams.num_heads * hparams.head_dim
    kv_rows = hparams.num_kv_heads * hparams.head_dim
    shapes: dict[tuple[str, str], Shape] = {
        ("attention_norm", "weight"): (hidden,),
        ("q", "weight"): (q_rows, hidden),
        ("k", "weight"): (kv_rows, hidden),
        ("v", "weight"): (kv_rows, hidden),
        ("o", "weight"): (hidden, q_rows),
        ("mlp_norm", "weight"): (hidden,),
        ("gate", "weight"): (ffn, hidden),
        ("up", "weight"): (ffn, hidden),
        ("down", "weight"): (hidden, ffn),
    }
    if hparams.attention_bias:
        shapes |= {("q", "bias"): (q_rows,), ("k", "bias"): (kv_rows,), ("v", "bias"): (kv_rows,)}
    if hparams.qk_norm:
        norm = (hparams.head_dim,)
        shapes |= {("q_norm", "weight"): norm, ("k_norm", "weight"): norm}
    return shapes


def check_tensors(
    container: Container, hparams: HParams, tensors: MappedTensors, source: object
) -> None:
    """Hold a checkpoint's tensors against what its hyper-parameters promise.

    Args:
        source: file or folder, for messages.

    Raises:
        ModelFileError: a tensor is missing, has another shape, has a type that cannot be
            computed with, or is not part of such a model.
    """
    wanted: set[str] = set()
    for name, shape in expected_tensors(container, hparams):
        if name not in tensors:
            raise ModelFileError(f"{source}: tensor {name!r} {list(shape)} is missing")
        _check_one(tensors, name, shape, source)
        wanted.add(name)
    if container == "gguf" and _LLAMA3_FACTORS in tensors:
        _check_one(tensors, _LLAMA3_FACTORS, (hparams.head_dim // 2,), source)
        wanted.add(_LLAMA3_FACTORS)
    for name in tensors.names():
        if name not in wanted and _IGNORED.fullmatch(name) is None:
            raise ModelFileError(
                f"{source}: tensor {name!r} is not part of a {hparams.architecture} model of "
                f"{hparams.num_layers} layers as luce knows it"
            )


def _check_one(tensors: MappedTensors, name: str, shape: Shape, source: object) -> None:
    meta = tensors.meta(name)
    if meta.shape != shape:
        raise ModelFileError(
            f"{source}: tensor {name!r} should be {list(shape)} by the hyper-parameters, but is "
            f"{list(meta.shape)}"
        )
    if meta.type not in DEQUANTIZERS:
        raise ModelFileError(
            f"{source}: tensor {name!r} has type {meta.type}, which luce cannot compute with yet "
            f"(supported: {', '.join(DEQUANTIZERS)})"
        )
