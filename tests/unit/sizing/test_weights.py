"""Memory of parameters, decoded and in planes, from headers alone."""

from __future__ import annotations

from functools import partial

import pytest

from luce.loaders.checkpoint import TensorMeta
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.sizing.weights import decoded_bytes, plane_bytes, tile_bytes, tiled_bytes
from luce.testing.headers import header_checkpoint

MATRIX = TensorMeta("a", "Q8_0", (1000, 64), 68000)
VECTOR = TensorMeta("b", "F32", (64,), 256)
checkpoint = partial(header_checkpoint, [MATRIX, VECTOR])


def test_decoded() -> None:
    elements = 1000 * 64 + 64
    tied, untied = checkpoint(), checkpoint(tie_word_embeddings=False)
    assert decoded_bytes(untied, 4, packed=True) == 4 * elements
    assert decoded_bytes(tied, 4, packed=False) == 4 * elements
    assert decoded_bytes(tied, 2, packed=False) == 2 * elements


def test_a_tied_embedding_is_counted_once_more_where_matrices_are_repacked() -> None:
    assert decoded_bytes(header_checkpoint([MATRIX]), 4, packed=True) == 4 * 2 * 64000


def test_planes_of_what_can_stay_quantised_and_the_rest_decoded() -> None:
    row = QUANT_FORMATS["Q8_0"].row_bytes(64)
    assert plane_bytes(checkpoint(), 2) == 1000 * row + 64 * 2


def test_experts_in_one_tensor_stay_quantised() -> None:
    experts = TensorMeta("experts", "Q8_0", (8, 125, 64), 68000)
    assert plane_bytes(header_checkpoint([experts]), 2) == plane_bytes(
        header_checkpoint([MATRIX]), 2
    )


@pytest.mark.parametrize(
    "meta",
    [
        TensorMeta("width", "Q4_K", (4, 128), 288),  # blocks of 256 do not fill its rows
        TensorMeta("type", "BF16", (4, 128), 1024),
        TensorMeta("rank", "Q8_0", (512,), 544),
    ],
    ids=lambda meta: meta.name,
)
def test_what_has_no_planes_is_decoded(meta: TensorMeta) -> None:
    assert plane_bytes(header_checkpoint([meta]), 2) == 512 * 2


@pytest.mark.parametrize(
    ("scales", "nbytes"), [((), 4 * 200), ((200, 1), 4 * 200), ((2, 3), 4 * 6)], ids=str
)
def test_fp8_stays_so_with_wide_scales(scales: tuple[int, ...], nbytes: int) -> None:
    metas = [
        TensorMeta("a.weight", "F8_E4M3", (200, 300), 60000),
        TensorMeta("a.weight_scale", "BF16", scales, 1),
        TensorMeta("a.input_scale", "F32", (), 4),
        VECTOR,
    ]
    checkpoint = header_checkpoint(metas, tie_word_embeddings=False)
    assert plane_bytes(checkpoint, 2) == 60000 + nbytes + 64 * 2
    # Decoded, scales are gone.
    assert decoded_bytes(checkpoint, 4, packed=False) == 4 * (60000 + 64)
    assert tiled_bytes(checkpoint, 4) == 4 * (60000 + 64)


def test_tiles_of_whole_rows_and_the_rest_decoded() -> None:
    # 63 tiles of 16 rows; 32 codes and a float16 for each 32 columns.
    row = 2 * (32 + 2)
    found = tiled_bytes(checkpoint(tie_word_embeddings=False), 4)
    assert found == 63 * 16 * row + 64 * 4


def test_a_tied_table_in_tiles_is_its_own_output_matrix() -> None:
    matrix = tile_bytes(QUANT_FORMATS["Q4_1"], 512, 64)
    assert matrix == 512 * 2 * (16 + 4)
    for kind, extra in (("Q4_1", 0), ("BF16", 4 * 512 * 64)):
        table = TensorMeta("token_embd.weight", kind, (512, 64), 1)
        own = matrix if kind == "Q4_1" else 4 * 512 * 64
        tied = header_checkpoint([table], vocab_size=512, hidden_size=64)
        assert tiled_bytes(tied, 4) == own + extra


@pytest.mark.parametrize(
    ("rows", "nbytes"), [(96, tile_bytes(QUANT_FORMATS["Q8_0"], 8 * 96, 64)), (125, 4 * 64000)]
)
def test_experts_are_tiled_where_each_is_whole_groups(rows: int, nbytes: int) -> None:
    experts = TensorMeta("experts", "Q8_0", (8, rows, 64), 8 * rows * 68)
    assert tiled_bytes(header_checkpoint([experts], tie_word_embeddings=False), 4) == nbytes
