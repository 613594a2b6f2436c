"""Blocks taken apart and put together again equal gguf's values, bit by bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.quant_planes import empty_planes, repack
from luce.loaders.ggml_types import TYPES_BY_NAME
from luce.loaders.quant_formats import NIBBLE_COLUMNS, QUANT_FORMATS, CodePlane, QuantFormat

TYPES = sorted(QUANT_FORMATS)


def stored(type_name: str, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Bytes of any value: also scales that are infinite or no number."""
    kind = TYPES_BY_NAME[type_name]
    size = rows * columns // kind.block_elements * kind.block_bytes
    noise = np.random.default_rng(seed).integers(0, 256, size=size, dtype=np.uint8)
    return torch.from_numpy(noise)


def gguf_values(type_name: str, raw: torch.Tensor, rows: int) -> np.ndarray:
    kind = gguf.GGMLQuantizationType[type_name]
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw.numpy().reshape(rows, -1), kind)


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("blocks", [1, 3])
def test_values_are_exact(type_name: str, blocks: int) -> None:
    columns = blocks * QUANT_FORMATS[type_name].column_multiple
    raw = stored(type_name, 5, columns)
    planes = repack(type_name, raw, 5, columns)
    expected = gguf_values(type_name, raw, 5)
    found = decode(planes).numpy()
    numbers = ~np.isnan(expected)
    assert numbers.any()
    np.testing.assert_array_equal(np.isnan(found), ~numbers)
    np.testing.assert_array_equal(found[numbers].view(np.uint32), expected[numbers].view(np.uint32))


@pytest.mark.parametrize("type_name", TYPES)
def test_memory_is_that_of_the_file(type_name: str) -> None:
    raw = stored(type_name, 16, 1024)
    planes = repack(type_name, raw, 16, 1024)
    assert raw.numel() <= planes.nbytes <= 1.03 * raw.numel()


def test_input_is_left_alone() -> None:
    raw = stored("Q6_K", 2, 256)
    before = raw.clone()
    repack("Q6_K", raw, 2, 256)
    assert torch.equal(raw, before)


@pytest.mark.parametrize("type_name", TYPES)
def test_runs_of_rows_fill_the_whole(type_name: str) -> None:
    raw = stored(type_name, 6, 512)
    whole = repack(type_name, raw, 6, 512)
    border = 4 * raw.numel() // 6
    filled = empty_planes(type_name, 6, 512, torch.device("cpu"))
    assert filled.nbytes == whole.nbytes == 6 * QUANT_FORMATS[type_name].row_bytes(512)
    filled.fill(4, repack(type_name, raw[border:], 2, 512))
    filled.fill(0, repack(type_name, raw[:border], 4, 512))
    assert filled.format is whole.format
    for name in ("codes", "high", "scales", "blocks"):
        mine, theirs = getattr(filled, name), getattr(whole, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            # As bytes: a scale may be no number.
            assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))


def codes_of(row: torch.Tensor) -> torch.Tensor:
    """One row of 32 four-bit codes as a Q4_0 block with scale 1."""
    packed = (row[:16] | (row[16:] << 4)).to(torch.uint8)
    scale = torch.ones(1, dtype=torch.float16).view(torch.uint8)
    return torch.cat([scale, packed])


def test_nibble_order() -> None:
    row = torch.arange(32) % 16
    word = repack("Q4_0", codes_of(row), 1, 32).codes[0, 1].item() & 0xFFFFFFFF
    assert [word >> 4 * p & 15 for p in range(8)] == [row[8 + c].item() for c in NIBBLE_COLUMNS]


def test_byte_order() -> None:
    scale = torch.ones(1, dtype=torch.float16).view(torch.uint8)
    raw = torch.cat([scale, torch.arange(32, dtype=torch.uint8)])
    halves = repack("Q8_0", raw, 1, 32).codes.view(torch.uint8).view(2, 4, 4)
    assert halves[0, 0].tolist() == [0, 4, 1, 5]
    assert halves[1, 0].tolist() == [2, 6, 3, 7]
    assert halves[0, 3].tolist() == [24, 28, 25, 29]


def test_a_bit_of_the_high_plane() -> None:
    raw = torch.zeros(22, dtype=torch.uint8)
    raw[2 + 1] = 1 << 2  # The fifth bit of column 10: word 1, byte 0 of the second half row.
    planes = repack("Q5_0", raw, 1, 32)
    assert planes.high is not None
    assert planes.high.tolist() == [[1 << (4 + 1)]]


def test_unknown_type() -> None:
    with pytest.raises(KeyError):
        repack("F16", torch.zeros(64, dtype=torch.uint8), 1, 32)


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [(1, 48, "do not fill"), (2, 32, "are not 2x32"), (1, 64, "are not 1x64")],
)
def test_shapes_that_do_not_fit(rows: int, columns: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        repack("Q4_0", torch.zeros(18, dtype=torch.uint8), rows, columns)


def test_format_facts() -> None:
    form: QuantFormat = QUANT_FORMATS["Q2_K"]
    assert form.is_two_level
    assert form.has_offset
    assert form.groups_of_16
    assert form.column_multiple == 256
    simple = QUANT_FORMATS["Q8_0"]
    assert not simple.is_two_level
    assert not simple.has_offset
    assert not simple.groups_of_16
    assert simple.column_multiple == 32
    assert simple.codes is CodePlane.EIGHT
