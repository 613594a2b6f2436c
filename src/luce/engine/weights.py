"""From stored tensors to parameters: names, shapes, dequantising, progress.

Stored tensors are decoded in pieces of whole rows straight into their place, so loading needs
little more memory than the result. Quantised matrices that stay so are sent as they are stored
and taken apart into planes on the device. Rows of GGUF llama files are laid out for interleaved
rotary pairs; they stay so, and the rotation follows `HParams.rope_layout`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.expert_weights import expert_pieces, single_experts
from luce.engine.fp8_scales import FP8_TYPE, read_scales
from luce.engine.fp8_weights import Fp8Matrix, StoredPart, empty_fp8, stackable
from luce.engine.native.tiles import StoredMatrix
from luce.engine.quant_planes import QuantPlanes, empty_planes, repack
from luce.engine.staged_upload import Piece, StagedUpload
from luce.errors import ModelFileError
from luce.loaders.checkpoint import Checkpoint, TensorMeta
from luce.loaders.fp8_names import is_fp8
from luce.loaders.model_tensors import expert_form, stored_shape
from luce.loaders.quant_formats import as_matrix, has_planes
from luce.loaders.quants import dequantize
from luce.loaders.tensor_names import stored_names

Progress = Callable[[str, int, int], None]
"""Called with stage, bytes done and bytes in all."""

_PIECE_ELEMENTS = 1 << 22
# Taking blocks apart needs some ten times their elements' bytes on the device, in every thread.
_PLANE_PIECE_ELEMENTS = 1 << 23
_NATIVE = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    FP8_TYPE: torch.float8_e4m3fn,
}
_EXACT_TABLES = {"F16": torch.float16, "BF16": torch.bfloat16}


class WeightReader:
    """A checkpoint's parameters; implements `models.base.Parameters`.

    On a GPU tensors are filled in the background, until `finish`.

    Args:
        checkpoint: names, types and bytes.
        dtype: what the model computes in.
        device: where parameters go.
        progress: told about every piece.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress,
    ) -> None:
        self._source = checkpoint.tensors
        self._container = checkpoint.container
        self._stored_name = stored_names(
            checkpoint.container, checkpoint.architecture, self._source.names()
        )
        self._dtype = dtype
        self._device = device
        self._progress = progress
        _use_up_warning()
        self._upload = None if device.type == "cpu" else StagedUpload(device)
        self._done_bytes = 0
        self._total_bytes = sum(self._source.meta(name).nbytes for name in self._source.names())

    def matrix(self, *parts: tuple[str, tuple[int, int]]) -> torch.Tensor:
        rows = sum(shape[0] for _, shape in parts)
        out = torch.empty(rows, parts[0][1][1], dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in parts:
            self._read(name, shape, out[start : start + shape[0]])
            start += shape[0]
        return out

    def quantised(self, *parts: tuple[str, tuple[int, int]]) -> list[QuantPlanes] | None:
        metas = [self._meta(name, shape) for name, shape in parts]
        if not all(has_planes(meta) for meta in metas):
            return None
        planes: list[QuantPlanes] = []
        for type_name, run in groupby(metas, key=lambda meta: meta.type):
            same = list(run)
            rows = sum(meta.shape[0] for meta in same)
            whole = empty_planes(type_name, rows, same[0].shape[1], self._device)
            start = 0
            for meta in same:
                self._put(self._plane_pieces(meta, whole, start))
                start += meta.shape[0]
            planes.append(whole)
        return planes

    def fp8(self, *parts: tuple[str, tuple[int, int]]) -> list[StoredPart] | None:
        metas = {name: self._meta(name, shape) for name, shape in parts}
        if not any(is_fp8(meta) for meta in metas.values()):
            return None
        found: list[StoredPart] = []
        for stays, run in groupby(parts, key=lambda part: is_fp8(metas[part[0]])):
            if stays:
                found += self._fp8_matrices([metas[name] for name, _ in run])
            else:
                found.append(self.matrix(*run))
        return found

    def _fp8_matrices(self, metas: list[TensorMeta]) -> Iterator[Fp8Matrix]:
        scales = [read_scales(self._source, meta) for meta in metas]
        for run in stackable(scales):
            columns = metas[0].shape[1]
            whole = empty_fp8([scales[index] for index in run], columns, self._device)
            self._fill_fp8(whole, [metas[index] for index in run])
            yield whole

    def _fill_fp8(self, whole: Fp8Matrix, metas: list[TensorMeta]) -> None:
        """Numbers of matrices, one below the other, as they are stored."""
        start = 0
        for meta in metas:
            rows, columns = meta.shape
            self._put(
                [
                    Piece(
                        partial(_numbers, raw, columns),
                        partial(_copy, whole.codes[start + first :][: raw.size // columns]),
                        raw.size,
                    )
                    for first, raw in self._runs(meta, rows, _PIECE_ELEMENTS)
                ]
            )
            start += rows

    def stored(self, *parts: tuple[str, tuple[int, int]]) -> list[StoredMatrix]:
        return [self._stored(self._meta(name, shape), shape) for name, shape in parts]

    def vector(self, *parts: tuple[str, tuple[int]]) -> torch.Tensor:
        size = sum(shape[0] for _, shape in parts)
        out = torch.empty(size, dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in parts:
            self._read(name, shape, out[start : start + shape[0]])
            start += shape[0]
        return out

    def table(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        meta = self._meta(name, shape)
        exact = _EXACT_TABLES.get(meta.type)
        narrower = exact is not None and exact.itemsize < self._dtype.itemsize
        dtype = exact if exact is not None and narrower else self._dtype
        out = torch.empty(shape, dtype=dtype, device=self._device)
        self._read(name, shape, out)
        return out

    def floats(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        meta = self._meta(name, shape)
        values = _decoded(meta, self._source.raw(meta.name), shape)
        self._report(meta.nbytes)
        return values.to(self._device, torch.float32, copy=True)

    def experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count, size, hidden = shape
        gate_up = torch.empty(count, 2 * size, hidden, dtype=self._dtype, device=self._device)
        down = torch.empty(count, hidden, size, dtype=self._dtype, device=self._device)
        names = set(self._source.names())
        form = expert_form(self._container, self._stored_name, names.__contains__)
        for piece in expert_pieces(prefix, form, gate_up, down):
            self._read(piece.name, piece.shape, piece.place)
        return gate_up, down

    def quantised_experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[QuantPlanes, QuantPlanes] | None:
        metas = self._stacked_experts(prefix, shape)
        if metas is None:
            return None
        count, size, hidden = shape
        gate, up, down = metas
        if gate.type != up.type or not all(has_planes(meta) for meta in metas):
            return None
        both = empty_planes(gate.type, 2 * count * size, hidden, self._device)
        last = empty_planes(down.type, count * hidden, size, self._device)
        for expert in range(count):
            self._put(
                [
                    self._expert_piece(gate, both, count, expert, 2 * size * expert),
                    self._expert_piece(up, both, count, expert, 2 * size * expert + size),
                    self._expert_piece(down, last, count, expert, hidden * expert),
                ]
            )
        return both, last

    def stored_experts(self, prefix: str, shape: tuple[int, int, int]) -> list[StoredMatrix] | None:
        metas = self._stacked_experts(prefix, shape)
        if metas is None:
            return None
        return [self._stored(meta, (meta.shape[0], meta.shape[1])) for meta in metas]

    def _stored(self, meta: TensorMeta, shape: tuple[int, int]) -> StoredMatrix:
        self._report(meta.nbytes)
        return StoredMatrix(meta.type, shape, self._source.raw(meta.name))

    def _stacked_experts(self, prefix: str, shape: tuple[int, int, int]) -> list[TensorMeta] | None:
        """Gate, up and down of all experts, each as one matrix, where they are stored so."""
        count, size, hidden = shape
        names = set(self._source.names())
        if expert_form(self._container, self._stored_name, names.__contains__) != "stacked":
            return None
        inner, outer = (count, size, hidden), (count, hidden, size)
        return [
            as_matrix(self._meta(f"{prefix}{part}_proj.weight", each))
            for part, each in (("gate", inner), ("up", inner), ("down", outer))
        ]

    def fp8_experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[Fp8Matrix, Fp8Matrix] | None:
        names = set(self._source.names())
        if expert_form(self._container, self._stored_name, names.__contains__) != "single":
            return None
        metas = [self._meta(*each) for each in single_experts(prefix, shape)]
        if not any(is_fp8(meta) for meta in metas):
            return None
        scales = [read_scales(self._source, meta) for meta in metas if is_fp8(meta)]
        if len(scales) < len(metas) or len({each.is_block for each in scales}) > 1:
            raise ModelFileError(
                f"the experts {prefix!r} are stored in several ways; luce takes FP8 of one kind of "
                "scales for all of a layer's"
            )
        _, size, hidden = shape
        # Of each expert gate, up and down.
        inner = [each for index, each in enumerate(scales) if index % 3 < 2]
        gate_up = empty_fp8(inner, hidden, self._device, band=size)
        down = empty_fp8(scales[2::3], size, self._device, band=hidden)
        self._fill_fp8(gate_up, [meta for index, meta in enumerate(metas) if index % 3 < 2])
        self._fill_fp8(down, metas[2::3])
        return gate_up, down

    def _expert_piece(
        self, meta: TensorMeta, whole: QuantPlanes, count: int, expert: int, start: int
    ) -> Piece:
        """One expert's stored blocks of `count` experts', into the rows from `start` on."""
        raw = self._source.raw(meta.name)
        nbytes = meta.nbytes // count
        mine = raw[expert * nbytes : (expert + 1) * nbytes]
        make = partial(torch.frombuffer, mine, dtype=torch.uint8)
        return Piece(make, partial(_take_apart, meta, whole, start), nbytes)

    def optional_vector(self, name: str, shape: tuple[int]) -> torch.Tensor | None:
        if self._stored_name(name) not in set(self._source.names()):
            return None
        out = torch.empty(shape, dtype=torch.float32, device=self._device)
        self._read(name, shape, out)
        self.finish()
        return out

    def finish(self) -> None:
        if self._upload is not None:
            self._upload.finish(self._report)

    def close(self) -> None:
        """Free what loading needed."""
        if self._upload is not None:
            self._upload.close()

    def _meta(self, name: str, shape: tuple[int, ...]) -> TensorMeta:
        stored = self._stored_name(name)
        try:
            meta = self._source.meta(stored)
        except KeyError:
            raise ModelFileError(
                f"tensor {stored!r} is missing; {list(shape)} is expected"
            ) from None
        shape = stored_shape(self._container, name, shape)
        if meta.shape != shape:
            raise ModelFileError(
                f"tensor {stored!r} is {list(meta.shape)}, but {list(shape)} is expected"
            )
        return meta

    def _read(self, name: str, shape: tuple[int, ...], out: torch.Tensor) -> None:
        """Decode a tensor into `out`, a piece of rows at a time."""
        meta = self._meta(name, shape)
        # A vector is one row: quantised blocks may span all of it.
        rows, row_shape = (shape[0], shape[1:]) if len(shape) > 1 else (1, shape)
        target = out if len(shape) > 1 else out.unsqueeze(0)
        scales = read_scales(self._source, meta) if meta.type == FP8_TYPE else None
        pieces: list[Piece] = []
        for start, raw in self._runs(meta, rows, _PIECE_ELEMENTS):
            count = raw.size * rows // meta.nbytes
            make: Callable[[], torch.Tensor] = partial(_decoded, meta, raw, (count, *row_shape))
            into = target[start : start + count]
            place: Callable[[torch.Tensor], None] = partial(_copy, into)
            if scales is not None:
                place = partial(scales.apply, start, into)
            pieces.append(Piece(make, place, raw.size))
        self._put(pieces)

    def _plane_pieces(self, meta: TensorMeta, whole: QuantPlanes, start: int) -> list[Piece]:
        """Stored blocks, taken apart where they arrive, into the rows from `start` on."""
        return [
            Piece(
                partial(torch.frombuffer, raw, dtype=torch.uint8),
                partial(_take_apart, meta, whole, start + first),
                raw.size,
            )
            for first, raw in self._runs(meta, meta.shape[0], _PLANE_PIECE_ELEMENTS)
        ]

    def _runs(
        self, meta: TensorMeta, rows: int, most: int
    ) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Runs of whole rows of at most so many elements: the first row and the stored bytes."""
        raw = self._source.raw(meta.name)
        row_bytes = meta.nbytes // rows
        step = max(1, most * rows // math.prod(meta.shape))
        for start in range(0, rows, step):
            yield start, raw[start * row_bytes : (start + step) * row_bytes]

    def _put(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if self._upload is not None:
                self._upload.add(piece)
            else:
                piece.place(piece.make())
                self._report(piece.nbytes)

    def _report(self, nbytes: int) -> None:
        self._done_bytes += nbytes
        # A tied embedding may be read twice, as table and as output matrix.
        self._progress("weights", min(self._done_bytes, self._total_bytes), self._total_bytes)


def _copy(target: torch.Tensor, values: torch.Tensor) -> None:
    target.copy_(values)


def _numbers(raw: npt.NDArray[np.uint8], columns: int) -> torch.Tensor:
    """Rows of FP8 numbers as bytes."""
    return torch.frombuffer(raw, dtype=torch.uint8).view(-1, columns)


def _take_apart(meta: TensorMeta, whole: QuantPlanes, start: int, raw: torch.Tensor) -> None:
    """Stored bytes of whole rows, on the device, into planes from row `start` on."""
    rows = raw.numel() * meta.shape[0] // meta.nbytes
    whole.fill(start, repack(meta.type, raw, rows, meta.shape[1]))


def _use_up_warning() -> None:
    """PyTorch warns, once, of read-only memory it could write to; nobody writes to ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.frombuffer(b"\0", dtype=torch.uint8)


def _decoded(meta: TensorMeta, raw: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> torch.Tensor:
    """Values of whole rows: float32, or the stored type where PyTorch has it, as a view."""
    native = _NATIVE.get(meta.type)
    if native is not None:
        return torch.frombuffer(raw, dtype=native).view(shape)
    try:
        return torch.from_numpy(dequantize(meta.type, raw, shape))
    except KeyError:
        raise ModelFileError(
            f"tensor {meta.name!r} is stored as {meta.type}, which cannot be decoded"
        ) from None
