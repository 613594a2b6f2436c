"""What a model keeps, from its hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from luce.engine.models.registry import FAMILIES
from luce.errors import UsageError
from luce.kv.spec import KVSpec, StateSpec
from luce.loaders.hparams import LinearAttention
from luce.sizing.geometry import kv_spec, state_spec, typed_spec
from luce.testing.headers import SMALL

SPEC = KVSpec("full", 2, 16, 3, 64, 2)
LINEAR = LinearAttention(
    ("linear_attention", "linear_attention", "linear_attention", "full_attention"),
    num_key_heads=2,
    num_value_heads=4,
    key_head_dim=32,
    value_head_dim=16,
    conv_kernel=4,
    head_order="grouped",
    decay_is_log=True,
)
HYBRID = replace(SMALL, num_layers=4, linear_attention=LINEAR)


@dataclass(frozen=True)
class Types:
    cache_type_k: str = "auto"
    cache_type_v: str = "auto"


def test_only_full_attention_keeps_keys_and_values() -> None:
    assert kv_spec(SMALL, 16, 2) == KVSpec("full", 2, 16, 2, 16, 2)
    assert kv_spec(HYBRID, 16, 2).num_layers == 1


def test_states_of_linear_layers() -> None:
    assert state_spec(SMALL, 2) is None
    # 2 * 64 + 64 channels look back on 3 inputs; 4 heads keep 32 x 16 numbers.
    assert state_spec(HYBRID, 2) == StateSpec(3, 192 * 3, 4 * 32 * 16, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_keeps_what_is_planned(family: str) -> None:
    is_hybrid = family.startswith("qwen35")
    hparams = replace(HYBRID if is_hybrid else SMALL, architecture=family)
    assert FAMILIES[family].kv_spec(hparams, 16, 2) == kv_spec(hparams, 16, 2)
    assert FAMILIES[family].state_spec(hparams, 2) == state_spec(hparams, 2)


@pytest.mark.parametrize("types", [Types(), Types("bf16"), Types("auto", "bf16")])
def test_what_the_model_computes_in_is_left_plain(types: Types) -> None:
    assert typed_spec(SPEC, types, "bf16") == SPEC


def test_one_type_names_both() -> None:
    found = typed_spec(SPEC, Types("q8_0"), "bf16")
    assert (found.key_type, found.value_type) == ("q8_0", "bf16")
    found = typed_spec(SPEC, Types("f16", "q4_0"), "bf16")
    assert (found.key_type, found.value_type) == ("f16", "q4_0")


def test_heads_that_do_not_fill_groups() -> None:
    odd = replace(SPEC, head_dim=80)
    with pytest.raises(UsageError, match=r"--cache-type-v q8_0 .* groups of 32 .* have 80"):
        typed_spec(odd, Types("f16", "q8_0"), "bf16")
    assert typed_spec(odd, Types("f16"), "bf16").key_type == "f16"


def test_unknown_type() -> None:
    with pytest.raises(UsageError, match="unknown --cache-type-k 'q3'; use auto, f32"):
        typed_spec(SPEC, Types("q3"), "bf16")
