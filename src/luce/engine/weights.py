"""From stored tensors to parameters: names, shapes, dequantising, progress.

Stored tensors are decoded in pieces of whole rows straight into their place, so loading needs
little more memory than the result. Rows of GGUF llama files are laid out for interleaved rotary
pairs; they stay so, and the rotation follows `HParams.rope_layout`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.staged_upload import Piece, StagedUpload
from luce.errors import ModelFileError
from luce.loaders.checkpoint import Checkpoint, TensorMeta
from luce.loaders.quants import dequantize

Progress = Callable[[str, int, int], None]
"""Called with stage, bytes done and bytes in all."""

_PIECE_ELEMENTS = 1 << 22
_NATIVE = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_EXACT_TABLES = {"F16": torch.float16, "BF16": torch.bfloat16}
_GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NAME = re.compile(r"(?:layers\.(\d+)\.)?(.+)\.(weight|bias)")


def gguf_name(name: str) -> str:
    """`layers.0.mlp.up_proj.weight` → `blk.0.ffn_up.weight`."""
    if name == "rope_freqs":
        return "rope_freqs.weight"
    match = _NAME.fullmatch(name)
    assert match is not None, name
    layer, module, kind = match.groups()
    prefix = "" if layer is None else f"blk.{layer}."
    return f"{prefix}{_GGUF_NAMES[module]}.{kind}"


def safetensors_name(name: str) -> str:
    """`layers.0.mlp.up_proj.weight` → `model.layers.0.mlp.up_proj.weight`."""
    return name if name.startswith("lm_head.") else f"model.{name}"


class WeightReader:
    """A checkpoint's parameters; implements `models.base.Parameters`.

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
        self._stored_name = gguf_name if checkpoint.container == "gguf" else safetensors_name
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

    def optional_vector(self, name: str, shape: tuple[int]) -> torch.Tensor | None:
        if self._stored_name(name) not in set(self._source.names()):
            return None
        out = torch.empty(shape, dtype=torch.float32, device=self._device)
        self._read(name, shape, out)
        return out

    def _meta(self, name: str, shape: tuple[int, ...]) -> TensorMeta:
        stored = self._stored_name(name)
        try:
            meta = self._source.meta(stored)
        except KeyError:
            raise ModelFileError(
                f"tensor {stored!r} is missing; {list(shape)} is expected"
            ) from None
        if meta.shape != shape:
            raise ModelFileError(
                f"tensor {stored!r} is {list(meta.shape)}, but {list(shape)} is expected"
            )
        return meta

    def _read(self, name: str, shape: tuple[int, ...], out: torch.Tensor) -> None:
        """Decode a tensor into `out`, a piece of rows at a time."""
        meta = self._meta(name, shape)
        raw = self._source.raw(meta.name)
        # A vector is one row: quantised blocks may span all of it.
        rows, row_shape = (shape[0], shape[1:]) if len(shape) > 1 else (1, shape)
        target = out if len(shape) > 1 else out.unsqueeze(0)
        row_bytes = meta.nbytes // rows
        step = max(1, _PIECE_ELEMENTS * rows // out.numel())
        pieces: list[Piece] = []
        for start in range(0, rows, step):
            count = min(step, rows - start)
            piece = raw[start * row_bytes : (start + count) * row_bytes]
            make: Callable[[], torch.Tensor] = partial(_decoded, meta, piece, (count, *row_shape))
            pieces.append((make, target[start : start + count]))
        if self._upload is not None and len(pieces) > 1:
            self._upload.run(pieces)
            self._report(meta.nbytes)
            return
        for make, place in pieces:
            place.copy_(make())
            self._report(meta.nbytes // len(pieces))

    def _report(self, nbytes: int) -> None:
        self._done_bytes += nbytes
        # A tied embedding is read twice, as table and as output matrix.
        self._progress("weights", min(self._done_bytes, self._total_bytes), self._total_bytes)

    def close(self) -> None:
        """Free what loading needed."""
        if self._upload is not None:
            self._upload.close()


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
