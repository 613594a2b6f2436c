from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest

from luce.errors import ModelFileError
from luce.loaders.gguf import GgufFile
from luce.testing import gguf_bytes as gb
from luce.testing.gguf_bytes import GgufBytes, entry, tensor

F32, Q4_1, Q8_0 = 0, 3, 8


def _write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    return path


def _open(tmp_path: Path, built: GgufBytes | bytes) -> GgufFile:
    return GgufFile(_write(tmp_path, built if isinstance(built, bytes) else built.build()))


def _error(tmp_path: Path, built: GgufBytes | bytes) -> str:
    with pytest.raises(ModelFileError) as caught:
        _open(tmp_path, built)
    message = str(caught.value)
    assert "x.gguf" in message
    assert "\n" not in message
    return message


def _one_tensor(**changes: object) -> GgufBytes:
    tensors = [tensor("w", (64, 2), F32, 0)]
    return GgufBytes(**{"tensors": tensors, "data": bytes(512), **changes})


def test_scalars_of_every_type(tmp_path: Path) -> None:
    values = {
        gb.UINT8: 255,
        gb.INT8: -128,
        gb.UINT16: 65535,
        gb.INT16: -32768,
        gb.UINT32: 2**32 - 1,
        gb.INT32: -(2**31),
        gb.FLOAT32: 0.5,
        gb.BOOL: True,
        gb.STRING: "Ġé",
        gb.UINT64: 2**64 - 1,
        gb.INT64: -(2**63),
        gb.FLOAT64: 1e300,
    }
    built = GgufBytes(entries=[entry(f"k{kind}", kind, value) for kind, value in values.items()])
    metadata = _open(tmp_path, built).metadata
    for kind, value in values.items():
        assert metadata[f"k{kind}"] == value
        assert type(metadata[f"k{kind}"]) is type(value)


def test_arrays_are_numpy_or_lists(tmp_path: Path) -> None:
    nested = (gb.ARRAY, [(gb.STRING, ["a", "bc"]), (gb.UINT8, [1, 2])])
    built = GgufBytes(
        entries=[
            entry("numbers", gb.ARRAY, (gb.INT32, [1, -2, 3])),
            entry("flags", gb.ARRAY, (gb.BOOL, [True, False])),
            entry("strings", gb.ARRAY, (gb.STRING, ["x", "", "yz"])),
            entry("empty", gb.ARRAY, (gb.FLOAT32, [])),
            entry("nested", gb.ARRAY, nested),
        ]
    )
    metadata = _open(tmp_path, built).metadata
    assert metadata["numbers"].dtype == np.int32
    assert metadata["numbers"].tolist() == [1, -2, 3]
    assert metadata["flags"].tolist() == [True, False]
    assert metadata["strings"] == ["x", "", "yz"]
    assert metadata["empty"].size == 0
    assert metadata["nested"][0] == ["a", "bc"]
    assert metadata["nested"][1].tolist() == [1, 2]
    assert metadata.length("strings") == 3
    assert metadata.length("nested") == 2
    assert metadata.length("absent") is None


def test_tensor_positions_and_shapes(tmp_path: Path) -> None:
    built = GgufBytes(
        entries=[entry("general.alignment", gb.UINT32, 64)],
        tensors=[tensor("a", (32, 3), Q4_1, 0), tensor("b", (5,), F32, 64)],
        data=bytes(range(84)),
        alignment=64,
    )
    opened = _open(tmp_path, built)
    first, second = opened.tensors
    assert (first.meta.type, first.meta.shape, first.meta.nbytes) == ("Q4_1", (3, 32), 60)
    assert first.start % 64 == 0
    assert opened.file.view(second.start, second.start + 20).tolist() == list(range(64, 84))


def test_version_2_is_read(tmp_path: Path) -> None:
    assert _open(tmp_path, _one_tensor(version=2)).version == 2


def test_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    writer = oracle.GGUFWriter(path, "llama")
    writer.add_array("list", [1.5, 2.5])
    writer.add_token_list(["a", "b", "日本"])
    values = np.arange(96, dtype=np.float32).reshape(3, 32)
    quantised = oracle.quants.quantize(values, oracle.GGMLQuantizationType.Q8_0)
    writer.add_tensor("f", values)
    writer.add_tensor("q", quantised, raw_dtype=oracle.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    opened = GgufFile(path)
    for theirs, ours in zip(oracle.GGUFReader(path).tensors, opened.tensors, strict=True):
        raw = opened.file.view(ours.start, ours.start + ours.meta.nbytes)
        assert ours.meta.name == theirs.name
        assert list(ours.meta.shape) == list(reversed(theirs.shape.tolist()))
        assert raw.tobytes() == theirs.data.tobytes()
    assert opened.metadata["tokenizer.ggml.tokens"] == ["a", "b", "日本"]
    assert opened.metadata["list"].tolist() == [1.5, 2.5]


def test_header_of_a_large_vocabulary_opens_quickly(tmp_path: Path) -> None:
    words = [f"token{index}" for index in range(150_000)]
    built = GgufBytes(
        entries=[
            entry("tokens", gb.ARRAY, (gb.STRING, words)),
            entry("merges", gb.ARRAY, (gb.STRING, words)),
        ]
    )
    path = _write(tmp_path, built.build())
    start = time.process_time()
    opened = GgufFile(path)
    assert time.process_time() - start < 2.0
    assert opened.metadata["tokens"][149_999] == "token149999"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is empty (0 bytes)"),
        (b"GGU", "not a GGUF file"),
        (b"GGUF", "needs 4 bytes at offset 4, but the file ends at 4"),
        (b"Hello, I am a text file.\n", "starts with b'Hell'"),
        (GgufBytes(version=99).build(), "version 99 is not supported"),
        (GgufBytes(version=1).build(), "version 1 is not supported"),
        (GgufBytes(version=0x03000000).build(), "big endian"),
        (GgufBytes(magic=b"FUGG").build(), "starts with b'FUGG'"),
    ],
)
def test_what_is_no_gguf_file(tmp_path: Path, data: bytes, expected: str) -> None:
    assert expected in _error(tmp_path, data)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        GgufFile(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GgufFile(tmp_path)
    with pytest.raises(ModelFileError, match="null byte"):
        GgufFile(tmp_path / "a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GgufFile(tmp_path / "pipe")


def test_a_file_without_read_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path, _one_tensor().build())

    def refuse(*_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    # Not by chmod: root may read everything.
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelFileError, match=r"x.gguf: cannot be read: Permission denied"):
        GgufFile(path)


HUGE = [2**31, 2**40, 2**60, 2**63, 2**64 - 1]


@pytest.mark.parametrize("count", HUGE)
def test_huge_counts_are_refused_before_anything_is_allocated(tmp_path: Path, count: int) -> None:
    assert f"table of {count} tensors" in _error(tmp_path, _one_tensor(num_tensors=count))
    assert f"metadata of {count} entries" in _error(tmp_path, _one_tensor(num_entries=count))


@pytest.mark.parametrize("count", HUGE)
def test_huge_lengths_are_refused(tmp_path: Path, count: int) -> None:
    length = struct.pack("<Q", count)
    key = GgufBytes(entries=[length + b"key and more bytes"])
    assert f"its key needs {count} bytes" in _error(tmp_path, key)
    value = GgufBytes(entries=[entry("k", gb.STRING, gb.payload(gb.UINT64, count))])
    value.entries = [gb.text("k") + struct.pack("<I", gb.STRING) + length]
    assert f"metadata key 'k': its text needs {count} bytes" in _error(tmp_path, value)
    for element in (gb.UINT8, gb.STRING, gb.ARRAY, gb.FLOAT64):
        head = struct.pack("<IQ", element, count)
        array = GgufBytes(entries=[entry("k", gb.ARRAY, head), entry("l", gb.UINT8, 0)])
        assert f"an array of {count}" in _error(tmp_path, array)
    inside = struct.pack("<IQQ", gb.STRING, 2, 1) + b"a" + length
    assert "2 strings pass the end" in _error(
        tmp_path, GgufBytes(entries=[entry("k", gb.ARRAY, inside)])
    )


def test_damaged_metadata(tmp_path: Path) -> None:
    cases = {
        "value type 13 is unknown": entry("k", 13, b""),
        "array element type 77": entry("k", gb.ARRAY, struct.pack("<IQ", 77, 0)),
        "its text is not valid UTF-8": entry("k", gb.STRING, b"\xff\xfe"),
        "its key is not valid UTF-8": gb.text(b"\xff") + struct.pack("<IB", gb.UINT8, 1),
    }
    for expected, damaged in cases.items():
        assert expected in _error(tmp_path, GgufBytes(entries=[damaged, bytes(16)], num_entries=1))
    twice = GgufBytes(entries=[entry("k", gb.UINT8, 1), entry("k", gb.UINT8, 2)])
    assert "metadata key 'k': appears twice" in _error(tmp_path, twice)


def test_deeply_nested_arrays_are_refused(tmp_path: Path) -> None:
    value: tuple[int, list[object]] = (gb.UINT8, [1])
    for _ in range(10):
        value = (gb.ARRAY, [value])
    built = GgufBytes(entries=[entry("k", gb.ARRAY, value)])
    assert "nested more than 4 deep" in _error(tmp_path, built)


def test_a_string_of_an_array_that_is_not_utf_8(tmp_path: Path) -> None:
    built = GgufBytes(entries=[entry("k", gb.ARRAY, (gb.STRING, ["fine", b"\xc3"]))])
    opened = _open(tmp_path, built)
    with pytest.raises(ModelFileError, match=r"k\[1\] is not valid UTF-8"):
        opened.metadata["k"]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([tensor("w", (64, 2), F32, 2**63)], "tensor 'w': F32 [2, 64] needs 512 bytes at offset"),
        ([tensor("w", (64, 2), F32, 32)], "but the file ends at"),
        ([tensor("w", (64, 1), F32, 8)], "offset 8 is not a multiple of the alignment 32"),
        ([tensor("w", (2**63, 2**63, 2**63, 2**63), F32, 0)], "but the file ends at"),
        ([tensor("w", (64, 0), F32, 0)], "has a dimension of 0"),
        ([tensor("w", (1, 1, 1, 1, 1), F32, 0)], "has 5 dimensions"),
        ([tensor("w", (33, 2), Q8_0, 0)], "rows of 33 elements do not fill Q8_0 blocks of 32"),
        ([tensor("w", (64, 2), 38, 0)], "tensor 'w': its type id 38 is unknown"),
        ([tensor("w", (64, 2), 4000, 0)], "type id 4000 (an id only forks of ggml use) is unknown"),
        ([tensor("v", (64,), F32, 0), tensor("w", (64,), F32, 128)], "'w': overlaps tensor 'v'"),
    ],
)
def test_damaged_tensor_tables(tmp_path: Path, entries: list[bytes], expected: str) -> None:
    assert expected in _error(tmp_path, _one_tensor(tensors=entries))


def test_too_many_dimensions_are_not_read(tmp_path: Path) -> None:
    damaged = gb.text("w") + struct.pack("<I", 2**32 - 1) + bytes(64)
    assert "has 4294967295 dimensions" in _error(tmp_path, _one_tensor(tensors=[damaged]))


@pytest.mark.parametrize(("kind", "value"), [(gb.UINT32, 0), (gb.UINT32, 48), (gb.STRING, "32")])
def test_bad_alignment(tmp_path: Path, kind: int, value: object) -> None:
    built = _one_tensor(entries=[entry("general.alignment", kind, value)])
    assert "not a power of two" in _error(tmp_path, built)


def test_fork_types_are_named_and_sized(tmp_path: Path) -> None:
    built = GgufBytes(tensors=[tensor("w", (32,), 101, 0)], data=bytes(17))
    assert _open(tmp_path, built).tensors[0].meta.type == "Q4_0_ROCMFP4_FAST"


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    whole = _one_tensor(entries=[entry("k", gb.ARRAY, (gb.STRING, ["ab", "c"]))]).build()
    for length in range(len(whole)):
        _error(tmp_path, whole[:length])
    assert _open(tmp_path, whole).tensors


class TestClaimsBeyondReason:
    """A file with holes may claim any number of empty things and have the bytes for them."""

    @pytest.mark.parametrize(
        ("element", "count", "size", "says"),
        [
            (gb.STRING, 500_000_000, 4 << 30, "500000000 strings are more than the 4194304"),
            (gb.ARRAY, 300_000_000, 4 << 30, "300000000 arrays are more than the 65536"),
            (gb.FLOAT64, 500_000_000, 4 << 30, "500000000 numbers are more than the 16777216"),
        ],
    )
    def test_arrays(self, tmp_path: Path, element: int, count: int, size: int, says: str) -> None:
        head = entry("a", gb.ARRAY, struct.pack("<IQ", element, count))
        self.refused(tmp_path, GgufBytes(entries=[head]).build(), size, says)

    def test_many_arrays_together(self, tmp_path: Path) -> None:
        claim = struct.pack("<IQ", gb.STRING, 4_000_000)
        built = GgufBytes(entries=[entry("k", gb.ARRAY, claim)], num_entries=2, alignment=1)
        path = _write(tmp_path, built.build())
        # The first array's strings are a hole, the second's head follows it.
        with path.open("r+b") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(32_000_000, os.SEEK_CUR)
            stream.write(entry("l", gb.ARRAY, claim))
            stream.truncate(100_000_000)
        with pytest.raises(ModelFileError, match="4000000 strings are more than the 194304"):
            GgufFile(path)

    def test_texts(self, tmp_path: Path) -> None:
        head = gb.text("a") + struct.pack("<IQ", gb.STRING, 3 << 30)
        self.refused(tmp_path, GgufBytes(entries=[head]).build(), 4 << 30, "3221225472 bytes in")

    def test_one_long_string_in_an_array(self, tmp_path: Path) -> None:
        head = entry("a", gb.ARRAY, struct.pack("<IQQ", gb.STRING, 1, 3 << 30))
        self.refused(tmp_path, GgufBytes(entries=[head]).build(), 4 << 30, "bytes of strings")

    def test_entries_and_tensors(self, tmp_path: Path) -> None:
        many = GgufBytes(num_entries=100_000_000).build()
        self.refused(tmp_path, many, 4 << 30, "100000000 metadata entries are more than")
        many = GgufBytes(num_tensors=100_000_000).build()
        self.refused(tmp_path, many, 4 << 30, "100000000 tensors are more than")

    def refused(self, tmp_path: Path, head: bytes, size: int, says: str) -> None:
        path = _write(tmp_path, head)
        os.truncate(path, size)
        begin = time.process_time()
        with pytest.raises(ModelFileError, match=says):
            GgufFile(path)
        assert time.process_time() - begin < 2.0
