from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from luce.errors import ModelFileError
from luce.loaders.safetensors import INDEX_NAME, SafetensorsModel
from luce.testing.tiny_models import tiny_llama

Header = dict[str, Any]


def _raw(header: Header | bytes, data: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _entry(dtype: str, shape: list[Any], start: Any, stop: Any) -> Header:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def _error(tmp_path: Path, data: bytes) -> str:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        SafetensorsModel(tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "\n" not in message
    return message


def test_agrees_with_the_safetensors_package(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.arange(4, dtype=np.float16),
        "c": np.arange(5, dtype=np.int64),
        "none": np.zeros((0, 4), dtype=np.float32),
    }
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    tensors = SafetensorsModel(tmp_path).tensors
    assert sorted(tensors.names()) == sorted(arrays)
    for name, array in arrays.items():
        assert tensors.meta(name).shape == array.shape
        assert tensors.raw(name).tobytes() == array.tobytes()
    assert [tensors.meta(name).type for name in "abc"] == ["F32", "F16", "I64"]


def test_shards_with_and_without_an_index(tmp_path: Path) -> None:
    whole = SafetensorsModel(tiny_llama(tmp_path / "whole", container="safetensors"))
    folder = tiny_llama(tmp_path / "split", container="safetensors", split=3)
    for _ in range(2):
        parts = SafetensorsModel(folder)
        assert sorted(parts.tensors.names()) == sorted(whole.tensors.names())
        for name in whole.tensors.names():
            assert np.array_equal(parts.tensors.raw(name), whole.tensors.raw(name))
        (folder / INDEX_NAME).unlink(missing_ok=True)


@pytest.mark.parametrize("keep_index", [True, False])
def test_a_missing_shard_is_named(tmp_path: Path, keep_index: bool) -> None:
    folder = tiny_llama(tmp_path, container="safetensors", split=3)
    name = "model-00002-of-00003.safetensors"
    (folder / name).unlink()
    if not keep_index:
        (folder / INDEX_NAME).unlink()
    with pytest.raises(ModelFileError, match=rf"{name}: this file of the model is missing"):
        SafetensorsModel(folder)


def test_a_tensor_only_the_index_knows(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path, container="safetensors", split=2)
    index = json.loads((folder / INDEX_NAME).read_text())
    index["weight_map"]["ghost"] = "model-00001-of-00002.safetensors"
    (folder / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="tensor 'ghost' is missing"):
        SafetensorsModel(folder)


@pytest.mark.parametrize(
    "weight_map", [None, {}, {"a": 3}, {"a": "../outside.safetensors"}, {"a": "/etc/passwd"}]
)
def test_a_damaged_index(tmp_path: Path, weight_map: object) -> None:
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelFileError, match="weight_map"):
        SafetensorsModel(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"has no model\*.safetensors file"):
        SafetensorsModel(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    for number in (1, 2):
        save_file({"w": np.zeros(2)}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    with pytest.raises(ModelFileError, match="tensor 'w' is already in model-00001"):
        SafetensorsModel(tmp_path)


GOOD = _entry("F32", [2], 0, 8)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is empty"),
        (b"1234567", "needs 8 bytes at least and has 7"),
        (_raw({}, b"", length=2**63), "claims 9223372036854775808 bytes, more than the format's"),
        (_raw({}, b"", length=5000), "header needs 5000 bytes at offset 8, but the file ends at"),
        (_raw(b"{nonsense}", b""), "header: is not valid JSON"),
        (_raw(b"[" * 50_000 + b"]" * 50_000, b""), "nested too deeply"),
        (_raw(b"[1]", b""), "must be a JSON object, not list"),
        (_raw({}, b""), "hold no tensors"),
        (_raw({"w": 3}, b""), "tensor 'w': its entry is not an object"),
        (_raw({"w": _entry("Q9", [2], 0, 8)}, bytes(8)), "tensor 'w': dtype 'Q9' is unknown"),
        (_raw({"w": _entry("F32", [-2], 0, 8)}, bytes(8)), "'w': shape is"),
        (_raw({"w": _entry("F32", [True], 0, 4)}, bytes(4)), "'w': shape is"),
        (_raw({"w": _entry("F32", [2**63, 2**62], 0, 8)}, bytes(8)), "'w': shape is"),
        (_raw({"w": _entry("F32", [2**62, 2**62], 0, 8)}, bytes(8)), "does not take 8 bytes"),
        (_raw({"w": _entry("F32", [2], 8, 0)}, bytes(8)), "does not take -8 bytes"),
        (_raw({"w": _entry("F32", [2], "0", 8)}, bytes(8)), "'w': data_offsets is"),
        (_raw({"w": {"dtype": "F32", "shape": [2]}}, bytes(8)), "'w': data_offsets is None"),
        (_raw({"w": GOOD | {"data_offsets": [0]}}, bytes(8)), "must be two numbers"),
        (_raw({"w": GOOD}, bytes(7)), "tensor 'w': F32 [2] needs 8 bytes at offset"),
        (_raw({"w": _entry("F4", [3], 0, 1)}, bytes(1)), "does not take 1 bytes"),
        (_raw({"w": GOOD, "v": GOOD}, bytes(8)), "overlaps its neighbour"),
        (_raw({"w": _entry("F32", [1], 4, 8)}, bytes(8)), "'w' leaves a hole before it"),
        (_raw({"w": GOOD}, bytes(9)), "1 bytes after the last tensor belong to none"),
    ],
)
def test_damaged_files(tmp_path: Path, data: bytes, expected: str) -> None:
    assert expected in _error(tmp_path, data)


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    whole = _raw({"w": GOOD, "v": _entry("U8", [3], 8, 11)}, bytes(11))
    for length in range(len(whole)):
        _error(tmp_path, whole[:length])
