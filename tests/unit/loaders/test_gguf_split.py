from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from luce.errors import ModelFileError
from luce.loaders.gguf_split import GgufModel, split_paths
from luce.testing import gguf_bytes as gb
from luce.testing.gguf_bytes import GgufBytes, entry, tensor
from luce.testing.tiny_models import tiny_llama


@pytest.fixture
def split(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "split", split=3)


def test_a_split_model_holds_the_same_tensors(tmp_path: Path, split: Path) -> None:
    whole = GgufModel(tiny_llama(tmp_path / "whole"))
    parts = GgufModel(split)
    assert sorted(parts.tensors.names()) == sorted(whole.tensors.names())
    for name in whole.tensors.names():
        assert np.array_equal(parts.tensors.raw(name), whole.tensors.raw(name))
    assert parts.file_bytes == sum(path.stat().st_size for path in split.parent.iterdir())
    assert parts.metadata["general.architecture"] == "llama"


def test_any_part_opens_the_whole(split: Path) -> None:
    last = split.with_name("model-00003-of-00003.gguf")
    assert len(GgufModel(last).tensors) == len(GgufModel(split).tensors)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_part_is_named(split: Path, number: int) -> None:
    name = f"model-0000{number}-of-00003.gguf"
    split.with_name(name).unlink()
    with pytest.raises(ModelFileError, match=rf"{name}: file {number} of 3 of this model is mis"):
        GgufModel(split.with_name("model-00001-of-00003.gguf"))


def test_swapped_parts_are_noticed(split: Path) -> None:
    second = split.with_name("model-00002-of-00003.gguf")
    shutil.copy(split.with_name("model-00003-of-00003.gguf"), second)
    with pytest.raises(ModelFileError, match=r"00002-of-00003.gguf: split.no is 2, but"):
        GgufModel(split)


def test_a_part_under_a_plain_name(split: Path) -> None:
    renamed = split.rename(split.with_name("renamed.gguf"))
    with pytest.raises(ModelFileError, match=r"one of 3 files of a split model \(split.count\)"):
        GgufModel(renamed)


def _part(tmp_path: Path, number: int, total: int, tensors: list[bytes]) -> Path:
    built = GgufBytes(
        entries=[
            entry("split.no", gb.UINT16, number),
            entry("split.count", gb.UINT16, 2),
            entry("split.tensors.count", gb.INT32, total),
        ],
        tensors=tensors,
        data=bytes(64),
    )
    path = tmp_path / f"m-0000{number + 1}-of-00002.gguf"
    path.write_bytes(built.build())
    return path


def test_the_first_part_may_hold_metadata_only(tmp_path: Path) -> None:
    first = _part(tmp_path, 0, 1, [])
    _part(tmp_path, 1, 1, [tensor("w", (4,), 0, 0)])
    assert list(GgufModel(first).tensors.names()) == ["w"]


def test_tensor_counts_must_agree(tmp_path: Path) -> None:
    first = _part(tmp_path, 0, 5, [tensor("v", (4,), 0, 0)])
    _part(tmp_path, 1, 5, [tensor("w", (4,), 0, 0)])
    with pytest.raises(ModelFileError, match="promises 5 tensors, but the 2 files hold 2"):
        GgufModel(first)


def test_a_tensor_in_two_parts(tmp_path: Path) -> None:
    first = _part(tmp_path, 0, 2, [tensor("w", (4,), 0, 0)])
    _part(tmp_path, 1, 2, [tensor("w", (4,), 0, 0)])
    with pytest.raises(ModelFileError, match=r"tensor 'w' is already in m-00001-of-00002.gguf"):
        GgufModel(first)


def test_zero_tensors(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(GgufBytes(entries=[entry("k", gb.UINT8, 1)]).build())
    with pytest.raises(ModelFileError, match=r"vocab.gguf: holds no tensors"):
        GgufModel(path)


@pytest.mark.parametrize("name", ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf"])
def test_impossible_numbers(name: str) -> None:
    with pytest.raises(ModelFileError, match="not a possible split"):
        split_paths(Path(name))


def test_names_that_only_look_like_a_split() -> None:
    for name in ("model-1-of-2.gguf", "model-00001-of-00002.bin", "model.gguf"):
        assert split_paths(Path(name)) == [Path(name)]
