"""Matrices in the tiles that native kernels read, made from the blocks as a GGUF file has them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from luce.engine.native.library import MAX_PARTS, TILE, LinearParts, Matrix, NativeLibrary
from luce.loaders.ggml_types import GGML_TYPES

_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}
# Large runs of memory, because the system has pages of 2 MiB for those only: a step reads all
# weights once, and with small pages the addresses alone are some 5 % of that.
_SLAB_BYTES = 32 << 20
_ALIGNMENT = 64
# Numbers of a matrix that a thread takes apart at a time: some 10 ms of work.
_RUN_ELEMENTS = 1 << 21


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix as its file has it.

    Attributes:
        type: GGUF's name of the block type.
        shape: rows and columns.
        raw: uint8, flat, a view of the map.
    """

    type: str
    shape: tuple[int, int]
    raw: npt.NDArray[np.uint8]


class TileStore:
    """Memory of tiles; lives as long as the matrices made from it."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library
        self._slab: npt.NDArray[np.uint8] | None = None
        self._used = 0

    @property
    def is_used(self) -> bool:
        """Whether a matrix was made."""
        return self._slab is not None

    def accepts(self, parts: list[StoredMatrix]) -> bool:
        """Whether there are kernels for these as one product."""
        return len(parts) <= MAX_PARTS and all(self._layout(part) is not None for part in parts)

    def linear(
        self, parts: list[StoredMatrix], bias: npt.NDArray[np.float32] | None
    ) -> TiledLinear:
        """Matrices whose outputs lie side by side, with their bias f32 [all rows]."""
        assert self.accepts(parts)
        return TiledLinear([self._matrix(part) for part in parts], bias)

    def _layout(self, part: StoredMatrix) -> Matrix | None:
        number = _NUMBERS.get(part.type)
        return None if number is None else self._library.layout(number, *part.shape)

    def _matrix(self, part: StoredMatrix) -> TiledMatrix:
        matrix = self._layout(part)
        assert matrix is not None
        # Rows that fill up the last tile stay 0, and so do their scales.
        memory = self._allocate(matrix.tiles * matrix.tile_bytes)
        factors = np.ones(matrix.tiles * TILE, dtype=np.float32)
        matrix.data, matrix.row_factors = memory.ctypes.data, factors.ctypes.data
        self._fill(matrix, part)
        if bool((factors == 1).all()):
            matrix.row_factors = None
            return TiledMatrix(matrix, memory, None)
        return TiledMatrix(matrix, memory, factors)

    def _fill(self, matrix: Matrix, part: StoredMatrix) -> None:
        """Runs of whole tiles, which threads can fill side by side."""
        raw, number = np.ascontiguousarray(part.raw), _NUMBERS[part.type]
        row_bytes, each = raw.size // matrix.rows, -(-_RUN_ELEMENTS // matrix.columns)
        each = -(-each // TILE) * TILE

        def fill(first: int) -> None:
            rows = min(each, matrix.rows - first)
            self._library.fill(matrix, number, raw.ctypes.data + first * row_bytes, first, rows)

        if matrix.rows <= each:
            fill(0)
            return
        with ThreadPoolExecutor(self._library.threads) as pool:
            list(pool.map(fill, range(0, matrix.rows, each)))

    def _allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        nbytes = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if self._slab is None or self._used + nbytes > self._slab.size:
            self._slab, self._used = _slab(max(nbytes, _SLAB_BYTES)), 0
        start = self._used
        self._used += nbytes
        return self._slab[start : start + nbytes]


def _slab(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeros on page borders; private, since shared memory usually has no large pages."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Some kernels know the name and have no such pages.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class TiledMatrix:
    """A matrix and the memory it points to."""

    matrix: Matrix
    memory: npt.NDArray[np.uint8]
    row_factors: npt.NDArray[np.float32] | None


class TiledLinear:
    """What a product reads.

    Attributes:
        parts: the matrices.
        struct: as the kernels see it.
        rows: of all parts.
        columns: of each.
        nbytes: memory of tiles and bias.
    """

    def __init__(self, parts: list[TiledMatrix], bias: npt.NDArray[np.float32] | None) -> None:
        self.parts = parts
        self.struct = LinearParts()
        self.struct.num_parts = len(parts)
        for index, part in enumerate(parts):
            self.struct.parts[index] = part.matrix
        self._bias = None if bias is None else np.ascontiguousarray(bias, dtype=np.float32)
        self.struct.bias = None if self._bias is None else self._bias.ctypes.data
        self.rows = sum(part.matrix.rows for part in parts)
        self.columns = int(parts[0].matrix.columns)
        bias_bytes = 0 if self._bias is None else self._bias.nbytes
        self.nbytes = sum(part.memory.nbytes for part in parts) + bias_bytes

    @property
    def address(self) -> int:
        """Where `struct` is."""
        return ctypes.addressof(self.struct)
