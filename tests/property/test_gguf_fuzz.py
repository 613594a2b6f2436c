"""Damaged model files give a result or `ModelFileError`: nothing else, not slowly, not hungrily."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luce.cli.inspect import summarize
from luce.errors import ModelFileError
from luce.loaders.opening import open_checkpoint, read_text_metadata
from luce.loaders.quants import dequantize
from luce.testing.tiny_models import tiny_llama, tiny_qwen3

MAX_SECONDS = 2.0
MAX_BYTES = 32 << 20
EXAMPLES = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

INTERESTING = [0, 1, 2, 7, 8, 9, 31, 32, 127, 255, 2**16, 2**31, 2**32 - 1, 2**40, 2**60, 2**63]
Mutation = tuple[str, int, int]
MUTATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("byte"), st.integers(0, 2**32), st.integers(0, 255)),
        st.tuples(st.just("word"), st.integers(0, 2**32), st.sampled_from(INTERESTING)),
        st.tuples(st.just("cut"), st.integers(0, 2**32), st.integers(1, 64)),
        st.tuples(st.just("repeat"), st.integers(0, 2**32), st.integers(1, 64)),
    ),
    min_size=1,
    max_size=6,
)


def _mutated(original: bytes, mutations: list[Mutation], span: int) -> bytes:
    data = bytearray(original)
    for kind, where, what in mutations:
        at = where % max(1, min(span, len(data)))
        if kind == "byte":
            data[at : at + 1] = bytes([what])
        elif kind == "word":
            data[at : at + 8] = (what % 2**64).to_bytes(8, "little")
        elif kind == "cut":
            del data[at : at + what]
        else:
            data[at:at] = data[at : at + what]
    return bytes(data)


def _use(path: Path) -> None:
    """What the two processes do with a model, tensors included."""
    read_text_metadata(path)
    tensors = open_checkpoint(path).tensors
    for name in tensors.names():
        meta = tensors.meta(name)
        assert dequantize(meta.type, tensors.raw(name), meta.shape).shape == meta.shape


@contextlib.contextmanager
def _within_limits() -> Iterator[None]:
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
    finally:
        seconds = time.process_time() - start
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert seconds < MAX_SECONDS
    assert peak < MAX_BYTES


def _survives(path: Path) -> None:
    for use in (_use, summarize):
        with _within_limits(), contextlib.suppress(ModelFileError):
            use(path)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tiny_llama(tmp_path_factory.mktemp("gguf"), quant="Q8_0", num_layers=1)
    return path.read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen3(tmp_path_factory.mktemp("hf"), container="safetensors", num_layers=1)


@pytest.fixture
def restore(folder: Path) -> Iterator[Callable[[str], bytes]]:
    """Gives a file's bytes and puts them back after the test."""
    saved: dict[str, bytes] = {}

    def read(name: str) -> bytes:
        return saved.setdefault(name, (folder / name).read_bytes())

    yield read
    for name, data in saved.items():
        (folder / name).write_bytes(data)


def _header_length(data: bytes) -> int:
    """Bytes before the tensor data, which is where the structure is."""
    return data.index(b"output_norm.weight") + 64


def test_the_originals_are_valid(gguf_bytes: bytes, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes)
    _use(path)
    _use(folder)


@EXAMPLES
@given(mutations=MUTATIONS)
def test_mutated_gguf(gguf_bytes: bytes, tmp_path: Path, mutations: list[Mutation]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(_mutated(gguf_bytes, mutations, _header_length(gguf_bytes)))
    _survives(path)


@EXAMPLES
@given(share=st.floats(0.0, 1.0, exclude_max=True), in_header=st.booleans())
def test_truncated_gguf(gguf_bytes: bytes, tmp_path: Path, share: float, in_header: bool) -> None:
    path = tmp_path / "model.gguf"
    span = _header_length(gguf_bytes) if in_header else len(gguf_bytes)
    path.write_bytes(gguf_bytes[: int(span * share)])
    with _within_limits(), pytest.raises(ModelFileError):
        _use(path)


@EXAMPLES
@given(mutations=MUTATIONS)
def test_mutated_safetensors(
    folder: Path, restore: Callable[[str], bytes], mutations: list[Mutation]
) -> None:
    original = restore("model.safetensors")
    span = 8 + int.from_bytes(original[:8], "little")
    (folder / "model.safetensors").write_bytes(_mutated(original, mutations, span))
    _survives(folder)


SIDE_FILES = ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"]
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@EXAMPLES
@given(mutations=MUTATIONS, name=st.sampled_from(SIDE_FILES))
def test_mutated_side_files(
    folder: Path, restore: Callable[[str], bytes], mutations: list[Mutation], name: str
) -> None:
    original = restore(name)
    (folder / name).write_bytes(_mutated(original, mutations, len(original)))
    _survives(folder)
    (folder / name).write_bytes(original)


@EXAMPLES
@given(data=st.data(), name=st.sampled_from(SIDE_FILES[:3]), value=JSON_VALUES)
def test_any_value_under_any_key(
    folder: Path, restore: Callable[[str], bytes], data: st.DataObject, name: str, value: object
) -> None:
    original = restore(name)
    keys = json.loads(original)
    keys[data.draw(st.sampled_from(sorted(keys)))] = value
    (folder / name).write_text(json.dumps(keys), encoding="utf-8", errors="replace")
    _survives(folder)
    (folder / name).write_bytes(original)


@EXAMPLES
@given(key=st.data(), value=JSON_VALUES)
def test_any_value_in_the_rope_section(
    folder: Path, restore: Callable[[str], bytes], key: st.DataObject, value: object
) -> None:
    config = json.loads(restore("config.json"))
    kind = key.draw(st.sampled_from(["linear", "llama3", "yarn"]))
    section = {
        "rope_theta": 1e4,
        "rope_type": kind,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    section[key.draw(st.sampled_from(sorted([*section, "mscale", "attention_factor"])))] = value
    config["rope_parameters"] = section
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8", errors="replace")
    _survives(folder)


@given(raw=st.binary(max_size=400))
def test_any_bytes_are_no_model(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("raw") / "x.gguf"
    path.write_bytes(b"GGUF\3\0\0\0" + raw)
    with _within_limits(), pytest.raises(ModelFileError):
        _use(path)
