"""Where quantised matrices stay so, and how large the kernels' tiles really are."""

from __future__ import annotations

import pytest

from luce.engine.native.library import NativeLibrary, native_library
from luce.loaders.ggml_types import GGML_TYPES
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.sizing import cpu_kernels
from luce.sizing.cpu_kernels import keeps_tiles
from luce.sizing.weights import tile_bytes


@pytest.mark.parametrize("is_there", [True, False])
def test_in_float32_on_a_cpu_with_kernels(monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    monkeypatch.setattr(cpu_kernels, "is_there", lambda: is_there)
    assert keeps_tiles("float32", on_cpu=True, is_exact=False) is is_there
    assert not keeps_tiles("float32", on_cpu=True, is_exact=True)
    assert not keeps_tiles("bfloat16", on_cpu=True, is_exact=False)
    assert not keeps_tiles("float32", on_cpu=False, is_exact=False)


@pytest.mark.parametrize("name", QUANT_FORMATS)
@pytest.mark.parametrize("rows", [1, 16, 33])
def test_tiles_are_as_large_as_the_kernels_lay_them_out(name: str, rows: int) -> None:
    library = native_library()
    if not isinstance(library, NativeLibrary):
        pytest.skip(library)
    (number,) = [number for number, kind in GGML_TYPES.items() if kind.name == name]
    matrix = library.layout(number, rows, 512)
    assert matrix is not None
    assert tile_bytes(QUANT_FORMATS[name], rows, 512) == matrix.tiles * matrix.tile_bytes
