from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from luce.errors import ModelFileError
from luce.loaders.gguf_hparams import gguf_hparams
from luce.loaders.gguf_split import GgufModel
from luce.loaders.hparams import HParams, RopeScaling
from luce.testing import gguf_bytes as gb

GgufWith = Callable[..., Path]


def _read(path: Path) -> HParams:
    return gguf_hparams(GgufModel(path))


def test_the_demo_model(demo_model: Path) -> None:
    assert _read(demo_model) == HParams(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        rms_norm_eps=pytest.approx(1e-5),
        rope_theta=100_000.0,
        rope_scaling=None,
        rope_layout="interleaved",
        context_length=8192,
        tie_word_embeddings=True,
        attention_bias=False,
        qk_norm=False,
    )


@pytest.mark.parametrize(
    ("architecture", "layout", "bias", "qk_norm"),
    [
        ("llama", "interleaved", False, False),
        ("qwen2", "half", True, False),
        ("qwen3", "half", False, True),
    ],
)
def test_each_family(
    gguf_with: GgufWith, architecture: str, layout: str, bias: bool, qk_norm: bool
) -> None:
    found = _read(gguf_with(architecture))
    assert (found.architecture, found.rope_layout) == (architecture, layout)
    assert (found.attention_bias, found.qk_norm) == (bias, qk_norm)
    assert (found.vocab_size, found.hidden_size, found.head_dim) == (6, 32, 8)
    assert (found.rms_norm_eps, found.rope_theta, found.context_length) == (0.5, 5000.0, 128)
    assert found.tie_word_embeddings


def test_an_output_tensor_means_untied(gguf_with: GgufWith) -> None:
    found = _read(gguf_with(tensors={"output.weight": (32, 6)}))
    assert not found.tie_word_embeddings


def test_defaults_of_the_format(gguf_with: GgufWith) -> None:
    found = _read(
        gguf_with(entries={"llama.attention.head_count_kv": None, "llama.rope.freq_base": None})
    )
    assert (found.num_kv_heads, found.rope_theta) == (4, 10_000.0)


def test_per_layer_arrays_of_equal_values(gguf_with: GgufWith) -> None:
    array = (gb.ARRAY, (gb.INT32, [2, 2, 2]))
    assert _read(gguf_with(entries={"llama.attention.head_count_kv": array})).num_kv_heads == 2


def test_harmless_keys_are_ignored(gguf_with: GgufWith) -> None:
    path = gguf_with(
        entries={
            "llama.vocab_size": (gb.UINT32, 99),
            "llama.expert_count": (gb.UINT32, 0),
            "llama.attention.sliding_window": (gb.UINT32, 128),
            "quantize.imatrix.file": (gb.STRING, "x"),
            "general.file_type": (gb.UINT32, 2),
        }
    )
    assert _read(path).vocab_size == 6


@pytest.mark.parametrize(
    "key",
    [
        "context_length",
        "embedding_length",
        "block_count",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(gguf_with: GgufWith, key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"model.gguf: llama.{key} is missing"):
        _read(gguf_with(entries={f"llama.{key}": None}))


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("embedding_length", (gb.UINT32, 0), "out of range"),
        ("embedding_length", (gb.STRING, "32"), "must be a whole number"),
        ("embedding_length", (gb.BOOL, True), "must be a whole number"),
        ("block_count", (gb.UINT64, 2**63), "out of range"),
        ("attention.head_count", (gb.UINT32, 6), "does not divide the embedding length 32"),
        ("attention.head_count_kv", (gb.UINT32, 3), "does not divide the head count 4"),
        ("attention.head_count_kv", (gb.ARRAY, (gb.INT32, [2, 4])), "differ from layer to layer"),
        ("attention.head_count_kv", (gb.ARRAY, (gb.INT32, [])), "list of this kind"),
        ("attention.layer_norm_rms_epsilon", (gb.FLOAT32, 0.0), "out of range"),
        ("attention.layer_norm_rms_epsilon", (gb.FLOAT32, math.nan), "out of range"),
        ("rope.freq_base", (gb.FLOAT32, math.inf), "out of range"),
        ("rope.dimension_count", (gb.UINT32, 4), "differs from the head dimension 8"),
        ("attention.value_length", (gb.UINT32, 16), "differs from the key length 8"),
        ("rope.scaling.type", (gb.STRING, "longrope"), "supported are none, linear and yarn"),
        ("expert_count", (gb.UINT32, 8), "mixtures of experts are not supported"),
        ("attention.sliding_window", (gb.UINT32, 64), "sliding windows are not supported"),
        ("attention.causal", (gb.BOOL, False), "bidirectional"),
        ("logit_scale", (gb.FLOAT32, 2.0), "scaled logits"),
        ("some.new.feature", (gb.UINT32, 1), "luce does not know this key"),
    ],
)
def test_a_wrong_value_is_named(
    gguf_with: GgufWith, key: str, value: tuple[int, object], problem: str
) -> None:
    path = gguf_with(entries={f"llama.{key}": value})
    with pytest.raises(ModelFileError, match=rf"model.gguf: llama.{key} is .*{problem}"):
        _read(path)


def test_an_odd_head_dimension(gguf_with: GgufWith) -> None:
    path = gguf_with(entries={"llama.attention.key_length": (gb.UINT32, 7)})
    with pytest.raises(ModelFileError, match="head dimension 7 is odd"):
        _read(path)


@pytest.mark.parametrize("name", ["qwen3next", "deepseek4", "gpt2", "clip"])
def test_an_unknown_architecture_lists_the_known_ones(gguf_with: GgufWith, name: str) -> None:
    path = gguf_with(entries={"general.architecture": (gb.STRING, name)})
    with pytest.raises(ModelFileError, match=rf"'{name}' is not .*llama, qwen2, qwen3"):
        _read(path)


def test_no_architecture(gguf_with: GgufWith) -> None:
    with pytest.raises(ModelFileError, match=r"general.architecture is missing"):
        _read(gguf_with(entries={"general.architecture": None}))


def _scaling(gguf_with: GgufWith, **keys: tuple[int, object]) -> RopeScaling | None:
    entries = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    return _read(gguf_with(entries=entries)).rope_scaling


def test_rope_scaling(gguf_with: GgufWith) -> None:
    linear, none = (gb.STRING, "linear"), (gb.STRING, "none")
    four = (gb.FLOAT32, 4.0)
    assert _scaling(gguf_with, type=linear, factor=four) == RopeScaling("linear", 4.0)
    assert _scaling(gguf_with, factor=four) == RopeScaling("linear", 4.0)
    assert _scaling(gguf_with, type=none, factor=four) is None
    assert _scaling(gguf_with, type=linear, factor=(gb.FLOAT32, 1.0)) is None
    old = _read(gguf_with(entries={"llama.rope.scale_linear": four}))
    assert old.rope_scaling == RopeScaling("linear", 4.0)


def test_yarn(gguf_with: GgufWith) -> None:
    keys: dict[str, tuple[int, object]] = {
        "type": (gb.STRING, "yarn"),
        "factor": (gb.FLOAT32, 4.0),
        "original_context_length": (gb.UINT32, 64),
    }
    assert _scaling(gguf_with, **keys) == RopeScaling("yarn", 4.0, 64)
    keys["attn_factor"] = (gb.FLOAT32, 0.5)
    keys["yarn_beta_fast"] = (gb.FLOAT32, 16.0)
    scaling = _scaling(gguf_with, **keys)
    assert scaling is not None
    assert scaling.beta_fast == 16.0
    assert scaling.attention_factor == pytest.approx(0.5 * (1 + 0.1 * math.log(4)))
    del keys["factor"]
    with pytest.raises(ModelFileError, match=r"llama.rope.scaling.factor is missing"):
        _scaling(gguf_with, **keys)


def test_llama3_factors_stay_in_their_tensor(gguf_with: GgufWith) -> None:
    factors = {"rope_freqs.weight": (4,)}
    assert _read(gguf_with(tensors=factors)).rope_scaling is None
    both = gguf_with(tensors=factors, entries={"llama.rope.scaling.factor": (gb.FLOAT32, 2.0)})
    with pytest.raises(ModelFileError, match=r"both rope_freqs.weight and rope scaling 'linear'"):
        _read(both)


def test_more_tokens_than_embedding_rows(gguf_with: GgufWith) -> None:
    with pytest.raises(ModelFileError, match=r"'token_embd.weight' is \[3, 32\].* each of 4 tok"):
        _read(gguf_with(tensors={"token_embd.weight": (32, 3)}))
    with pytest.raises(ModelFileError, match=r"'token_embd.weight' is missing"):
        _read(gguf_with(tensors={"token_embd.weight": None}))
