"""Logits of tiny random models of each family against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_harness import all_logits, load_engine, random_ids, relative_error
from reference import reference_logits, reference_model

from luce.loaders.hparams import RopeScaling
from luce.testing.tiny_models import tiny_llama, tiny_qwen2, tiny_qwen3

TOLERANCE = 1e-4
# Quantised weights on a CPU: activations keep 15 bits of the largest of 32.
ROUNDED_TOLERANCE = 4e-4
FAMILIES = {"llama": tiny_llama, "qwen2": tiny_qwen2, "qwen3": tiny_qwen3}
TOKENS = 75
BLOCKS = [7, 2, 11, 5, 3]
SCALINGS = {
    "linear": RopeScaling(kind="linear", factor=4.0),
    "llama3": RopeScaling(kind="llama3", factor=8.0, original_context=64),
    "yarn": RopeScaling(kind="yarn", factor=4.0, original_context=128),
}


def _compare(tmp_path: Path, family: str, options: dict[str, Any], quant: str) -> None:
    """GGUF and safetensors of the same weights against transformers on the latter."""
    make = FAMILIES[family]
    folder = make(tmp_path / "hf", container="safetensors", quant=quant, **options)
    file = make(tmp_path / "gguf", container="gguf", quant=quant, **options)
    ids = random_ids(TOKENS, 280, seed=1)
    expected = reference_logits(reference_model(folder), ids)
    assert expected.std() > 0.1, "logits too flat to prove anything"
    cases = ((folder, True, TOLERANCE), (file, True, TOLERANCE), (file, False, ROUNDED_TOLERANCE))
    for path, exact, tolerance in cases:
        engine = load_engine(path, cpu_exact=exact)
        found = all_logits(engine, ids, [TOKENS], BLOCKS)
        assert relative_error(found, expected) < tolerance, (path, exact)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_float32(tmp_path: Path, family: str, tied: bool) -> None:
    _compare(tmp_path, family, {"tied": tied}, "F32")


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"])
def test_quantised_equals_dequantised(tmp_path: Path, quant: str) -> None:
    """The folder holds what the GGUF's blocks dequantise to."""
    _compare(tmp_path, "llama", {}, quant)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_quantised_qwen(tmp_path: Path, family: str) -> None:
    _compare(tmp_path, family, {"tied": False}, "Q8_0")


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_rope_scaling(tmp_path: Path, family: str, scaling: str) -> None:
    _compare(tmp_path, family, {"rope_scaling": SCALINGS[scaling]}, "F32")


def test_rope_scaling_matters(tmp_path: Path) -> None:
    """What the scaling tests compare is not the unscaled model by accident."""
    ids = random_ids(TOKENS, 280, seed=1)
    plain = all_logits(load_engine(tiny_llama(tmp_path / "p")), ids, [TOKENS], BLOCKS)
    for name, scaling in SCALINGS.items():
        path = tiny_llama(tmp_path / name, rope_scaling=scaling)
        scaled = all_logits(load_engine(path), ids, [TOKENS], BLOCKS)
        assert relative_error(scaled, plain) > 100 * TOLERANCE, name


@pytest.mark.parametrize(
    "chunks", [[41, 14, *[1] * 20], [1] * TOKENS, [16, 16, 16, 16, 11], [64, 11]]
)
def test_chunked_prefill_equals_one_shot(tmp_path: Path, chunks: list[int]) -> None:
    for family, make in FAMILIES.items():
        folder = make(tmp_path / family, container="safetensors")
        ids = random_ids(TOKENS, 280, seed=2)
        expected = reference_logits(reference_model(folder), ids)
        found = all_logits(load_engine(folder), ids, chunks, BLOCKS)
        assert relative_error(found, expected) < TOLERANCE, family


def test_narrow_types_stay_close(tmp_path: Path) -> None:
    """bfloat16 and float16 compute the same model, as far as their digits go."""
    path = tiny_llama(tmp_path)
    ids = random_ids(TOKENS, 280, seed=3)
    expected = all_logits(load_engine(path), ids, [TOKENS], BLOCKS)
    for dtype, tolerance in (("bfloat16", 0.05), ("float16", 0.01)):
        engine = load_engine(path, dtype=dtype)
        assert engine.resolved.dtype == dtype
        found = all_logits(engine, ids, [40, 20, *[1] * 15], BLOCKS)
        assert relative_error(found, expected) < tolerance, dtype
