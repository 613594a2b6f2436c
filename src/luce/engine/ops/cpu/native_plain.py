"""Products with matrices that are partly in tiles and partly plain, by the native kernels.

Files quantise the large matrices and keep small ones as they are: a router, the gates of a
recurrence. Decoding the large ones for the sake of these would cost all that quantising saves.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from luce.engine.native import layer_structs, library
from luce.engine.native.layer_structs import Dense
from luce.engine.native.library import GROUP, Op
from luce.engine.native.tape import RoundedRows, Tape
from luce.engine.native.tiles import StoredMatrix, TiledLinear, TileStore
from luce.engine.ops.cpu.native import NativeOps, rounded
from luce.engine.ops.linear import Linear
from luce.engine.ops.pointwise import RmsNorm
from luce.engine.ops.projection import NormedProduct, NormWeight
from luce.loaders.quants import dequantize

_PLAIN_TYPES = ("F32", "F16", "BF16")


class PlainMatrix:
    """A matrix in float32, rows one after the other, as the kernels see it.

    Attributes:
        rows: of it.
        nbytes: its memory.
        struct: `luce_dense`.
    """

    def __init__(self, part: StoredMatrix) -> None:
        self.rows, columns = part.shape
        # A copy: what the file's map has may go while the model stays.
        self._values = np.array(dequantize(part.type, part.raw, part.shape))
        self.nbytes = self._values.nbytes
        self.struct = Dense(self.rows, columns, self._values.ctypes.data)


class MixedLinear:
    """`ops.linear.Linear` of matrices whose outputs lie side by side, some of them plain."""

    def __init__(self, tape: Tape, parts: list[TiledLinear | PlainMatrix]) -> None:
        self._tape = tape
        self._parts = parts
        self._rows = sum(part.rows for part in parts)
        self._is_rounded = any(isinstance(part, TiledLinear) for part in parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] → [T, out]."""
        rows: RoundedRows | None = None
        ops: list[Op] = []
        if self._is_rounded:
            rows, ops = rounded(self._tape, x, None)
        tokens, source = x.shape[0], self._tape.address(x)
        out = self._tape.empty(tokens, self._rows)
        column = out.data_ptr()
        for part in self._parts:
            op = Op(width=self._rows, out=column)
            if isinstance(part, TiledLinear):
                assert rows is not None
                op.kind, op.linear, op.in_rows = library.PRODUCT, part.address, rows.address
            else:
                op.kind, op.in_ = layer_structs.DENSE, source
                op.more = ctypes.addressof(part.struct)
            ops.append(op)
            column += out.element_size() * part.rows
        self._tape.emit(tokens, ops, tuple(self._parts))
        return out

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y, in place."""
        return residual.add_(self(x))

    def holds(self, weight: torch.Tensor) -> bool:
        """Never: all of it is copied."""
        del weight
        return False

    @property
    def nbytes(self) -> int:
        """Memory of all parts."""
        return sum(part.nbytes for part in self._parts)


@dataclass(frozen=True, slots=True)
class MixedProduct:
    """`ops.projection.NormedProduct`; other linears go to `otherwise`."""

    norm: RmsNorm
    otherwise: NormedProduct

    def __call__(self, x: torch.Tensor, norm: NormWeight, linear: Linear) -> torch.Tensor:
        """[T, in] → [T, out]."""
        if isinstance(linear, MixedLinear):
            return linear(self.norm(x, norm.weight, norm.eps))
        return self.otherwise(x, norm, linear)


def native_linear(
    native: NativeOps, parts: list[StoredMatrix], bias: torch.Tensor | None
) -> Linear | None:
    """A product with these matrices, some of which may be plain; None where it has no kernels."""
    if bias is None and _is_partly_plain(native.store, parts):
        return mixed_linear(native, parts)
    return native.linear(parts, bias)


def mixed_linear(native: NativeOps, parts: list[StoredMatrix]) -> MixedLinear | None:
    """A product with these matrices, or None where a type has no kernels."""
    runs: list[TiledLinear | PlainMatrix] = []
    for is_plain, run in groupby(parts, key=_is_plain):
        same = list(run)
        if is_plain:
            runs.extend(PlainMatrix(part) for part in same)
        elif native.store.accepts(same):
            runs.append(native.store.linear(same, None))
        else:
            return None
    return MixedLinear(native.tape, runs)


def _is_partly_plain(store: TileStore, parts: list[StoredMatrix]) -> bool:
    """Whether some of the matrices are plain and the others can be in tiles."""
    tiled = [part for part in parts if not _is_plain(part)]
    return 0 < len(tiled) < len(parts) and all(store.accepts([part]) for part in tiled)


def _is_plain(part: StoredMatrix) -> bool:
    return part.type in _PLAIN_TYPES and part.shape[1] % GROUP == 0
