"""Operations by the native kernels: each writes itself onto the tape, and the tape runs it.

Weights stay quantised. What they are multiplied with is rounded to 15 bits for each 32 numbers
(scale = largest magnitude / 16319, two int8 a number), which changes a product by some 4e-5 of its
norm; sums are in float32. A row's result depends on no other row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.native import library as native
from luce.engine.native.library import Cache, Heads, NativeLibrary, Op
from luce.engine.native.tape import RoundedRows, Tape
from luce.engine.native.tiles import StoredMatrix, TiledLinear, TileStore
from luce.engine.ops.attention import AttentionBatch, AttentionStep, HeadShape
from luce.engine.ops.kv_cache import KVCache, TypedCache
from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormedProduct, NormWeight
from luce.engine.ops.qkv import HeadNorms, TokenPlaces

# Chunks of work of an attention from which on every thread has some that take alike.
_ENOUGH_CHUNKS = 32
# Most numbers of parts of attention that wait for the others, 32 MiB of them: with many rows over a
# long context they would take more than the weights.
_MOST_PARTIALS = 8 << 20


class NativeOps:
    """What makes linears and embeddings of stored matrices, and the tape they share.

    Attributes:
        tape: where all operations go.
        store: memory of the matrices.
        has_experts: whether experts of mixtures are in tiles, too.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self.tape = Tape(library)
        self.store = TileStore(library)
        self.has_experts = False

    def linear(self, parts: list[StoredMatrix], bias: torch.Tensor | None) -> NativeLinear | None:
        """A product with these matrices, or None where a type has no kernels."""
        if not self.store.accepts(parts):
            return None
        return NativeLinear(self.tape, self.store.linear(parts, _array(bias)))

    @property
    def is_used(self) -> bool:
        """Whether any matrix is in tiles."""
        return self.store.is_used

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
    if heads.head_dim % native.GROUP or heads.head_dim > native.MOST_HEAD_DIM:
        return (
            f"made for head sizes that are multiples of {native.GROUP}, up to "
            f"{native.MOST_HEAD_DIM}"
        )
    if heads.group > native.UNIT_ROWS:
        return f"made for up to {native.UNIT_ROWS} query heads to a key head"
    if block_tokens % native.TILE or native.SEGMENT % block_tokens:
        return "made for blocks of 16, 32 or 64 tokens"
    return None


def _cache(cache: KVCache, heads: HeadShape) -> Cache:
    """A layer's memory: of every block keys [K, W, P], then values [K, P, W], then their scales.

    A cache's own order inside a block is another: what native kernels wrote only they read.
    """
    if isinstance(cache, TypedCache):
        return _typed(cache, heads)
    assert cache.is_contiguous()
    assert cache.shape[3:] == (heads.num_kv_heads, heads.head_dim)
    start, block_bytes = cache.data_ptr(), cache.stride(0) * cache.itemsize
    values = start + block_bytes // 2
    return Cache(start, values, start, values, block_bytes, cache.shape[1])


def _typed(cache: TypedCache, heads: HeadShape) -> Cache:
    keys, values = cache.keys, cache.values
    assert keys.data.shape[2] == heads.num_kv_heads
    starts = [part.data.data_ptr() for part in (keys, values)]
    scales = [
        start if part.scales is None else part.scales.data_ptr()
        for start, part in zip(starts, (keys, values), strict=True)
    ]
    block_bytes = keys.data.stride(0) * keys.data.itemsize
    types = [native.KV_TYPES.index(part.type) for part in (keys, values)]
    return Cache(*starts, *scales, block_bytes, keys.data.shape[1], *types)


def heads_struct(heads: HeadShape, rotary_dim: int = 0, *, interleaved: bool = False) -> Heads:
    """The heads as the kernels see them."""
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
            heads=heads_struct(heads, 2 * places.rotary.shape[-2], interleaved=self.interleaved),
            cache=_cache(cache, heads),
        )
        if norms is not None:
            op.eps = norms.eps
            op.weight, op.key_weight = norms.query.data_ptr(), norms.key.data_ptr()
        self.tape.emit(len(packed), [op], (norms, cache))


@dataclass(frozen=True, slots=True)
class _Unit:
    """A run of one sequence's tokens, with the spans of keys that it sees."""

    first: int
    count: int
    length: int
    table: int

    @property
    def num_spans(self) -> int:
        return -(-(self.length + self.count - 1) // native.SPAN)

    def pieces(self, *, are_shared: bool) -> Sequence[int]:
        """Its spans, or -1 for all at once."""
        return range(self.num_spans) if are_shared and self.num_spans > 1 else (-1,)


class NativeAttention:
    """`ops.attention.PagedAttention` over blocks as `NativePlaceQkv` writes them."""

    def __init__(self, tape: Tape, heads: HeadShape) -> None:
        self._tape = tape
        self._heads = heads
        self._most = max(1, native.UNIT_ROWS // heads.group)
        self._kept: tuple[npt.NDArray[np.int32], ...] = ()
        self._partials = np.empty(0, dtype=np.float32)

    def prepare(self, batch: AttentionBatch) -> AttentionStep:
        """Cut the sequences into units."""
        units: list[_Unit] = []
        blocks: list[int] = []
        for sequence in range(batch.num_sequences):
            first, stop = batch.query_starts[sequence : sequence + 2]
            before = batch.context_lens[sequence] - (stop - first)
            units.extend(
                _Unit(start, min(self._most, stop - start), before + start - first + 1, len(blocks))
                for start in range(first, stop, self._most)
            )
            blocks.extend(batch.block_tables[sequence][: batch.num_blocks(sequence)])
        rows = [(each.first, each.count, each.length, each.table) for each in units]
        columns = np.array(rows, dtype=np.int32).reshape(-1, 4).T.copy()
        flat = np.array(blocks, dtype=np.int32)
        step = self._tape.step
        step.num_units = len(units)
        step.unit_tokens, step.unit_counts, step.unit_lengths, step.unit_tables = (
            column.ctypes.data for column in columns
        )
        step.blocks = flat.ctypes.data
        # The addresses are theirs.
        self._kept = (columns, flat, *self._cut(units))
        return self._attend

    def _cut(self, units: list[_Unit]) -> tuple[npt.NDArray[np.int32], ...]:
        """Where there are few units, the threads share the spans of each.

        Else they share the last one's, whose end the others would wait for.
        """
        num_kv, step = self._heads.num_kv_heads, self._tape.step
        rows = self._heads.group * max((unit.count for unit in units), default=0)
        if rows >= native.MANY_ROWS:
            rows = -(-rows // native.TILE) * native.TILE
        width = num_kv * rows * (self._heads.head_dim + 2)
        num_spans = sum(unit.num_spans for unit in units)
        first_shared = len(units)
        if num_kv * len(units) < _ENOUGH_CHUNKS and num_spans * width <= _MOST_PARTIALS:
            first_shared = 0
        elif units and (len(units) + units[-1].num_spans) * width <= _MOST_PARTIALS:
            first_shared = len(units) - 1
        pieces = [
            (index, span)
            for index, unit in enumerate(units)
            for span in unit.pieces(are_shared=index >= first_shared)
        ]
        columns = np.array(pieces, dtype=np.int32).reshape(-1, 2).T.copy()
        arrivals = np.zeros(len(units) * num_kv, dtype=np.int32)
        step.num_pieces = len(pieces)
        step.piece_units, step.piece_spans = (column.ctypes.data for column in columns)
        step.arrivals = arrivals.ctypes.data
        if len(pieces) > len(units):
            step.partial_rows = rows
            if self._partials.size < len(pieces) * width:
                # Some more than needed: a sequence grows from step to step.
                self._partials = np.empty((len(pieces) + 16) * width, dtype=np.float32)
            step.partials = self._partials.ctypes.data
        return columns, arrivals

    def _attend(self, qkv: torch.Tensor, cache: KVCache) -> torch.Tensor:
        tokens, width = len(qkv), self._heads.num_heads * self._heads.head_dim
        out, rows = self._tape.empty(tokens, width), self._tape.rounded(tokens, width)
        op = Op(
            kind=native.ATTEND,
            in_=self._tape.address(qkv),
            out=out.data_ptr(),
            out_rows=rows.address,
            heads=heads_struct(self._heads),
            cache=_cache(cache, self._heads),
        )
        self._tape.emit(tokens, [op], (cache,))
        self._tape.set_twin(out, rows)
        return out
