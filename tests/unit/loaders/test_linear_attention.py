"""Patterns of layers: made, and told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luce.errors import ModelFileError
from luce.loaders.hparams import HParams, LayerType
from luce.loaders.linear_attention import layer_pattern, pattern
from luce.testing.tiny_models import LINEAR

L: LayerType = "linear_attention"
F: LayerType = "full_attention"


def hparams(layer_types: tuple[LayerType, ...] | None, num_layers: int = 5) -> HParams:
    return HParams(
        architecture="qwen35",
        vocab_size=1,
        hidden_size=1,
        intermediate_size=1,
        num_layers=num_layers if layer_types is None else len(layer_types),
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        rope_scaling=None,
        rope_layout="half",
        context_length=16,
        tie_word_embeddings=True,
        attention_bias=False,
        qk_norm=True,
        linear_attention=None if layer_types is None else replace(LINEAR, layer_types=layer_types),
    )


def test_every_so_many_layers_attend_to_all() -> None:
    assert pattern(9, 4) == (L, L, L, F, L, L, L, F, L)


def test_a_file_cannot_claim_any_number_of_layers() -> None:
    with pytest.raises(ModelFileError, match="1073741824 layers is not supported"):
        pattern(1 << 30, 4)


@pytest.mark.parametrize(
    ("layer_types", "text"),
    [
        (None, "5 full attention"),
        ((L, L, L, F) * 16, "16 x (3 linear attention + 1 full attention)"),
        ((L, L, L, F), "3 linear attention + 1 full attention"),
        ((L, F, L), "1 linear attention + 1 full attention + 1 linear attention"),
    ],
)
def test_told(layer_types: tuple[LayerType, ...] | None, text: str) -> None:
    assert layer_pattern(hparams(layer_types)) == text
