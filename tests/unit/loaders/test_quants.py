from __future__ import annotations

import gguf as oracle
import numpy as np
import numpy.typing as npt
import pytest

from luce.loaders.ggml_types import GGML_TYPES, TYPES_BY_NAME
from luce.loaders.quants import DEQUANTIZERS, dequantize, stored_bytes

# Offsets of the float16 fields of a block, which random bytes could make infinite or NaN.
_HALVES = {
    "F16": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
_SCALE_SPREAD = 0.1


def _random_rows(name: str, rows: int, blocks: int, seed: int) -> npt.NDArray[np.uint8]:
    """uint8 [rows, blocks * block_bytes] of valid blocks."""
    generator = np.random.default_rng(seed)
    kind = TYPES_BY_NAME[name]
    count = rows * blocks
    if name == "F32":
        return generator.standard_normal((rows, blocks)).astype(np.float32).view(np.uint8)
    raw = generator.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    for offset in _HALVES.get(name, ()):
        scales = (generator.standard_normal(count) * _SCALE_SPREAD).astype(np.float16)
        raw[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    if name == "BF16":
        raw[:, 1] &= 0xBF
    if name == "MXFP4":
        raw[:, 0] = generator.integers(0, 250, count)
    return raw.reshape(rows, blocks * kind.block_bytes)


@pytest.mark.parametrize("rows", [1, 7, 600])
@pytest.mark.parametrize("name", DEQUANTIZERS)
def test_equal_to_the_gguf_package_to_the_last_bit(name: str, rows: int) -> None:
    raw = _random_rows(name, rows, blocks=3, seed=rows)
    expected = oracle.quants.dequantize(raw, oracle.GGMLQuantizationType[name])
    shape = (rows, 3 * TYPES_BY_NAME[name].block_elements)
    got = dequantize(name, raw.reshape(-1), shape)
    assert got.dtype == np.float32
    assert got.shape == shape
    assert np.isfinite(got).all()
    assert np.array_equal(got.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32))


@pytest.mark.parametrize("name", DEQUANTIZERS)
def test_rows_can_be_done_in_pieces(name: str) -> None:
    raw = _random_rows(name, 11, blocks=2, seed=5)
    columns = 2 * TYPES_BY_NAME[name].block_elements
    whole = dequantize(name, raw.reshape(-1), (11, columns))
    pieces = [
        dequantize(name, raw[start:stop].reshape(-1), (stop - start, columns))
        for start, stop in ((0, 4), (4, 5), (5, 11))
    ]
    assert np.array_equal(whole, np.concatenate(pieces))


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "MXFP4", "BF16"])
def test_quantised_values_come_back_close(name: str) -> None:
    values = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    raw = oracle.quants.quantize(values, oracle.GGMLQuantizationType[name])
    got = dequantize(name, raw.view(np.uint8).reshape(-1), values.shape)
    assert np.abs(got - values).max() < 0.6
    assert np.corrcoef(got.ravel(), values.ravel())[0, 1] > 0.98


def test_mxfp4_subnormal_scales() -> None:
    raw = np.full((2, 17), 0x22, dtype=np.uint8)
    raw[:, 0] = (0, 1)
    got = dequantize("MXFP4", raw.reshape(-1), (2, 32))
    assert got[0, 0] == np.float32(2 * 2.0**-128)
    assert got[1, 0] == np.float32(2 * 2.0**-127)


@pytest.mark.parametrize("name", DEQUANTIZERS)
def test_wild_scales_give_values_and_no_warning(name: str) -> None:
    raw = np.full(2 * TYPES_BY_NAME[name].block_bytes, 0xFF, dtype=np.uint8)
    shape = (2, TYPES_BY_NAME[name].block_elements)
    assert dequantize(name, raw, shape).shape == shape


def test_a_read_only_map_is_enough_and_never_written() -> None:
    raw = np.frombuffer(np.arange(4, dtype=np.float32).tobytes(), dtype=np.uint8)
    assert not raw.flags.writeable
    got = dequantize("F32", raw, (4,))
    got[:] = -1.0
    assert raw.view(np.float32).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_bytes_that_do_not_fit_the_shape() -> None:
    with pytest.raises(ValueError, match=r"Q8_0 \[2, 32\] takes 68 bytes, not 67"):
        dequantize("Q8_0", np.zeros(67, dtype=np.uint8), (2, 32))
    with pytest.raises(ValueError, match="rows of 33 do not fill"):
        stored_bytes("Q8_0", (2, 33))
    with pytest.raises(KeyError):
        dequantize("IQ2_XXS", np.zeros(66, dtype=np.uint8), (256,))


def test_the_type_table_agrees_with_the_gguf_package() -> None:
    for kind, (elements, nbytes) in oracle.GGML_QUANT_SIZES.items():
        ours = GGML_TYPES[int(kind)]
        assert (ours.name, ours.block_elements, ours.block_bytes) == (kind.name, elements, nbytes)
    assert set(DEQUANTIZERS) <= set(TYPES_BY_NAME)
