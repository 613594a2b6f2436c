"""Operations by the native kernels: each writes itself onto the tape, and the tape runs it.

Weights stay quantised. What they are multiplied with is rounded to 15 bits for each 32 numbers
(scale = largest magnitude / 16319, two int8 a number), which changes a product by some 4e-5 of its
norm; sums are in float32. A row's result depends on no other row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.native import library as native
from luce.engine.native.library import Cache, Heads, NativeLibrary, Op
from luce.engine.native.tape import RoundedRows, Tape
from luce.engine.native.tiles import StoredMatrix, TiledLinear, TileStore
from luce.engine.ops.attention import AttentionBatch, AttentionStep, HeadShape
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormedProduct, NormWeight
from luce.engine.ops.qkv import HeadNorms, TokenPlaces


class NativeOps:
    """What makes linears and embeddings of stored matrices, and the tape they share."""

    def __init__(self, library: NativeLibrary) -> None:
        self.tape = Tape(library)
        self._store = TileStore(library)

    def linear(self, parts: list[StoredMatrix], bias: torch.Tensor | None) -> NativeLinear | None:
        """A product with these matrices, or None where a type has no kernels."""
        if not self._store.accepts(parts):
            return None
        return NativeLinear(self.tape, self._store.linear(parts, _array(bias)))

    @property
    def is_used(self) -> bool:
        """Whether any matrix is in tiles."""
        return self._store.is_used

    def embedding(self, part: StoredMatrix) -> NativeEmbedding | None:
        """A table of tokens, or None where its type has no kernels."""
        linear = self.linear([part], None)
        return None if linear is None else NativeEmbedding(self.tape, linear)


def _array(tensor: torch.Tensor | None) -> npt.NDArray[np.float32] | None:
    return None if tensor is None else np.asarray(tensor.numpy(), dtype=np.float32)


class NativeLinear:
    """`ops.linear.Linear` with the weight in tiles."""

    def __init__(self, tape: Tape, tiles: TiledLinear) -> None:
        self.tape = tape
        self.tiles = tiles

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] → [T, out]."""
        return self.product(x, None, None)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + y, in place."""
        return self.product(x, None, residual)

    def product(
        self, x: torch.Tensor, norm: NormWeight | None, residual: torch.Tensor | None
    ) -> torch.Tensor:
        """linear(x), or of x normalised, plus the residual, which is overwritten."""
        rows, ops = rounded(self.tape, x, norm)
        tokens = x.shape[0]
        out = self.tape.empty(tokens, self.tiles.rows) if residual is None else residual
        ops.append(
            Op(
                kind=native.PRODUCT,
                width=self.tiles.rows,
                linear=self.tiles.address,
                in_=None if residual is None else self.tape.address(residual),
                in_rows=rows.address,
                out=self.tape.address(out),
            )
        )
        self.tape.emit(tokens, ops, (self.tiles, norm))
        return out

    def holds(self, weight: torch.Tensor) -> bool:
        """Never: tiles are no plain matrix."""
        del weight
        return False

    @property
    def nbytes(self) -> int:
        """Memory of tiles and bias."""
        return self.tiles.nbytes


def rounded(tape: Tape, x: torch.Tensor, norm: NormWeight | None) -> tuple[RoundedRows, list[Op]]:
    """Rows for `x`, or for x normalised, and what fills them."""
    if norm is None:
        twin = tape.twin(x)
        if twin is not None:
            return twin, []
    tokens, columns = x.shape
    rows = tape.rounded(tokens, columns)
    op = Op(kind=native.QUANTISE, width=columns, in_=tape.address(x), out_rows=rows.address)
    if norm is not None:
        op.weight, op.eps = norm.weight.data_ptr(), norm.eps
    return rows, [op]


class NativeEmbedding:
    """`layers.embedding.TokenEmbedding` over a table in tiles."""

    def __init__(self, tape: Tape, linear: NativeLinear) -> None:
        self._tape = tape
        self._linear = linear

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """i32 [T] → [T, hidden]."""
        tiles = self._linear.tiles
        out = self._tape.empty(len(token_ids), tiles.columns)
        self._tape.step.input_ids = token_ids.data_ptr()
        op = Op(kind=native.EMBED, width=tiles.columns, linear=tiles.address, out=out.data_ptr())
        self._tape.emit(len(token_ids), [op], (tiles,))
        return out

    def head(self) -> Linear:
        """The same table as output matrix."""
        return self._linear

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._linear.nbytes


@dataclass(frozen=True, slots=True)
class NativeRmsNorm:
    """`ops.pointwise.RmsNorm` of [T, size]."""

    tape: Tape

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise the last axis."""
        flat = x.contiguous().view(-1, x.shape[-1])
        out = self.tape.empty(*flat.shape)
        op = Op(
            kind=native.NORM,
            width=flat.shape[1],
            eps=eps,
            in_=self.tape.address(flat),
            out=out.data_ptr(),
            weight=weight.data_ptr(),
        )
        self.tape.emit(len(flat), [op], (weight,))
        return out.view(x.shape)


@dataclass(frozen=True, slots=True)
class NativeProduct:
    """`ops.projection.NormedProduct`; other linears go to `otherwise`."""

    otherwise: NormedProduct

    def __call__(self, x: torch.Tensor, norm: NormWeight, linear: Linear) -> torch.Tensor:
        """[T, in] → [T, out]."""
        if isinstance(linear, NativeLinear):
            return linear.product(x, norm, None)
        return self.otherwise(x, norm, linear)


@dataclass(frozen=True, slots=True)
class NativeGatedProduct:
    """The same where the weight is gate | up."""

    otherwise: NormedProduct

    def __call__(self, x: torch.Tensor, norm: NormWeight, linear: Linear) -> torch.Tensor:
        """[T, in] → [T, out / 2]."""
        if not isinstance(linear, NativeLinear) or not _is_gate_and_up(linear):
            return self.otherwise(x, norm, linear)
        tape, tiles = linear.tape, linear.tiles
        rows, ops = rounded(tape, x, norm)
        tokens, columns = x.shape[0], tiles.rows // 2
        out, out_rows = tape.empty(tokens, columns), tape.rounded(tokens, columns)
        ops.append(
            Op(
                kind=native.GATED,
                linear=tiles.address,
                in_rows=rows.address,
                out=out.data_ptr(),
                out_rows=out_rows.address,
            )
        )
        tape.emit(tokens, ops, (tiles, norm))
        tape.set_twin(out, out_rows)
        return out


def _is_gate_and_up(linear: NativeLinear) -> bool:
    """Two matrices of one size, whole groups of columns, no bias."""
    parts = [part.matrix for part in linear.tiles.parts]
    return (
        len(parts) == 2
        and parts[0].rows == parts[1].rows
        and parts[0].rows % native.GROUP == 0
        and not linear.tiles.struct.bias
    )


def cache_refusal(heads: HeadShape, block_tokens: int) -> str | None:
    """Why keys and values of this geometry cannot lie as the native kernels read them."""
    if heads.head_dim % native.GROUP:
        return f"made for head sizes that are multiples of {native.GROUP}"
    if heads.group > native.UNIT_ROWS:
        return f"made for up to {native.UNIT_ROWS} query heads to a key head"
    if block_tokens % native.TILE or native.SEGMENT % block_tokens:
        return "made for blocks of 16, 32 or 64 tokens"
    return None


def _cache(cache: KVCache, heads: HeadShape) -> Cache:
    """A layer's memory: of every block keys [K, D, P], then values [K, P, D]."""
    assert isinstance(cache, torch.Tensor)
    assert cache.is_contiguous()
    assert cache.shape[3:] == (heads.num_kv_heads, heads.head_dim)
    return Cache(cache.data_ptr(), cache.shape[1])


def _heads(heads: HeadShape, rotary_dim: int = 0, *, interleaved: bool = False) -> Heads:
    return Heads(heads.num_heads, heads.num_kv_heads, heads.head_dim, rotary_dim, interleaved)


@dataclass(frozen=True, slots=True)
class NativePlaceQkv:
    """`ops.qkv.PlaceQkv`; blocks are laid out for `NativeAttention`."""

    tape: Tape
    interleaved: bool

    def __call__(
        self,
        packed: torch.Tensor,
        heads: HeadShape,
        norms: HeadNorms | None,
        places: TokenPlaces,
        cache: KVCache,
    ) -> None:
        """Norm, rotate, store."""
        self.tape.step.rotary = places.rotary.data_ptr()
        self.tape.step.slots = places.slot_mapping.data_ptr()
        op = Op(
            kind=native.PLACE,
            out=self.tape.address(packed),
            heads=_heads(heads, 2 * places.rotary.shape[-2], interleaved=self.interleaved),
            cache=_cache(cache, heads),
        )
        if norms is not None:
            op.eps = norms.eps
            op.weight, op.key_weight = norms.query.data_ptr(), norms.key.data_ptr()
        self.tape.emit(len(packed), [op], (norms, cache))


class NativeAttention:
    """`ops.attention.PagedAttention` over blocks as `NativePlaceQkv` writes them."""

    def __init__(self, tape: Tape, heads: HeadShape) -> None:
        self._tape = tape
        self._heads = heads
        self._most = max(1, native.UNIT_ROWS // heads.group)
        self._kept: tuple[npt.NDArray[np.int32], ...] = ()

    def prepare(self, batch: AttentionBatch) -> AttentionStep:
        """Cut the sequences into units."""
        units: list[tuple[int, int, int, int]] = []
        blocks: list[int] = []
        for sequence in range(batch.num_sequences):
            first, stop = batch.query_starts[sequence : sequence + 2]
            before = batch.context_lens[sequence] - (stop - first)
            units.extend(
                (start, min(self._most, stop - start), before + start - first + 1, len(blocks))
                for start in range(first, stop, self._most)
            )
            blocks.extend(batch.block_tables[sequence][: batch.num_blocks(sequence)])
        columns = np.array(units, dtype=np.int32).reshape(-1, 4).T.copy()
        flat = np.array(blocks, dtype=np.int32)
        # The addresses below are theirs.
        self._kept = (columns, flat)
        step = self._tape.step
        step.num_units = columns.shape[1]
        step.unit_tokens, step.unit_counts, step.unit_lengths, step.unit_tables = (
            column.ctypes.data for column in columns
        )
        step.blocks = flat.ctypes.data
        return self._attend

    def _attend(self, qkv: torch.Tensor, cache: KVCache) -> torch.Tensor:
        tokens, width = len(qkv), self._heads.num_heads * self._heads.head_dim
        out, rows = self._tape.empty(tokens, width), self._tape.rounded(tokens, width)
        op = Op(
            kind=native.ATTEND,
            in_=self._tape.address(qkv),
            out=out.data_ptr(),
            out_rows=rows.address,
            heads=_heads(self._heads),
            cache=_cache(cache, self._heads),
        )
        self._tape.emit(tokens, [op], (cache,))
        self._tape.set_twin(out, rows)
        return out
