"""What keys and values are stored as: what was asked for and what the model allows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from luce.engine.kv_types import typed_spec
from luce.engine.options import EngineOptions
from luce.errors import UsageError
from luce.kv.spec import KVSpec

SPEC = KVSpec("full", 2, 16, 3, 64, 2)


def typed(spec: KVSpec = SPEC, **types: str) -> KVSpec:
    return typed_spec(spec, EngineOptions(path=Path("x"), **types), torch.bfloat16)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "types", [{}, {"cache_type_k": "bf16"}, {"cache_type_k": "auto", "cache_type_v": "bf16"}]
)
def test_what_the_model_computes_in_is_left_plain(types: dict[str, str]) -> None:
    assert typed(**types) == SPEC


def test_one_type_names_both() -> None:
    found = typed(cache_type_k="q8_0")
    assert (found.key_type, found.value_type) == ("q8_0", "bf16")
    found = typed(cache_type_v="q4_0", cache_type_k="f16")
    assert (found.key_type, found.value_type) == ("f16", "q4_0")


@pytest.mark.parametrize("flag", ["cache_type_k", "cache_type_v"])
def test_heads_that_do_not_fill_groups(flag: str) -> None:
    odd = KVSpec("full", 2, 16, 3, 80, 2)
    named = f"--{flag.replace('_', '-')} q8_0 .* groups of 32 .* have 80"
    with pytest.raises(UsageError, match=named):
        typed(odd, **{flag: "q8_0"})
    assert typed(odd, **{flag: "f16"}).key_type is not None


def test_unknown_type() -> None:
    with pytest.raises(UsageError, match=r"unknown --cache-type-v 'q3': use|'q3'; use auto, f32"):
        typed(cache_type_v="q3")
