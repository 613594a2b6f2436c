"""Gates and norms that leave rounded numbers beside plain ones, by the native kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.native import layer_structs
from luce.engine.native.library import GROUP, NORM, Op
from luce.engine.native.tape import Tape
from luce.engine.ops.attention import AttentionStep, HeadShape
from luce.engine.ops.cpu.native import heads_struct
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.pointwise import SiluAndMul
from luce.engine.ops.qkv import PlaceQkv, Placing


@dataclass(frozen=True, slots=True)
class NativeRmsNorm:
    """`ops.pointwise.RmsNorm`; in a recording its result is rounded for all products at once."""

    tape: Tape

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise the last axis."""
        tape, flat = self.tape, x.contiguous().view(-1, x.shape[-1])
        tokens, width = flat.shape
        out = tape.empty(tokens, width)
        op = Op(
            kind=NORM,
            width=width,
            eps=eps,
            in_=tape.address(flat),
            out=out.data_ptr(),
            weight=weight.data_ptr(),
        )
        if tape.is_recording and x.ndim == 2 and width % GROUP == 0:
            rows = tape.rounded(tokens, width)
            op.kind, op.out_rows = layer_structs.ROUNDED_NORM, rows.address
            tape.set_twin(out, rows)
        tape.emit(tokens, [op], (weight,))
        return out.view(x.shape)


@dataclass(frozen=True, slots=True)
class NativeSiluAndMul:
    """`ops.pointwise.SiluAndMul`; what is not whole groups wide goes to `otherwise`."""

    tape: Tape
    otherwise: SiluAndMul

    def __call__(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2F] → [T, F]."""
        tape, (tokens, both) = self.tape, gate_up.shape
        width = both // 2
        if width % GROUP or not gate_up.is_contiguous():
            return self.otherwise(gate_up)
        source = tape.address(gate_up)
        out, rows = tape.empty(tokens, width), tape.rounded(tokens, width)
        op = Op(
            kind=layer_structs.SILU_MUL,
            width=width,
            in_=source,
            out=out.data_ptr(),
            out_rows=rows.address,
        )
        tape.emit(tokens, [op], ())
        tape.set_twin(out, rows)
        return out


def heads_refusal(heads: HeadShape) -> str | None:
    """Why heads of this size have no kernels."""
    if heads.head_dim % GROUP:
        return f"made for head sizes that are multiples of {GROUP}"
    return None


@dataclass(frozen=True, slots=True)
class NativeGatedHeads:
    """`ops.gated_heads.GatedHeads` of heads that `heads_refusal` does not refuse."""

    tape: Tape

    def split(self, projected: torch.Tensor, heads: HeadShape) -> torch.Tensor:
        """[T, (2H + 2K) * D] → [T, (H + 2K) * D]."""
        tape, tokens = self.tape, len(projected)
        source = tape.address(projected)
        out = tape.empty(tokens, (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim)
        op = Op(
            kind=layer_structs.SPLIT_GATES,
            in_=source,
            out=out.data_ptr(),
            heads=heads_struct(heads),
        )
        tape.emit(tokens, [op], ())
        return out

    def place(self, projected: torch.Tensor, placing: Placing, place_qkv: PlaceQkv) -> torch.Tensor:
        """`split`, then `place_qkv`."""
        packed = self.split(projected, placing.heads)
        place_qkv(packed, placing.heads, placing.norms, placing.places, placing.cache)
        return packed

    def attend(
        self,
        step: AttentionStep,
        packed: torch.Tensor,
        cache: KVCache,
        projected: torch.Tensor,
        heads: HeadShape,
    ) -> torch.Tensor:
        """Attention, then `gate`."""
        return self.gate(step(packed, cache), projected, heads)

    def gate(self, mixed: torch.Tensor, projected: torch.Tensor, heads: HeadShape) -> torch.Tensor:
        """mixed * sigmoid(gates), in place."""
        tape, tokens = self.tape, len(projected)
        mixed = mixed.contiguous()
        rows = tape.rounded(tokens, mixed.shape[1])
        op = Op(
            kind=layer_structs.GATE_HEADS,
            in_=tape.address(projected),
            out=tape.address(mixed),
            out_rows=rows.address,
            heads=heads_struct(heads),
        )
        tape.emit(tokens, [op], ())
        tape.set_twin(mixed, rows)
        return mixed
