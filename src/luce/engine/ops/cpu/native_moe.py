"""Mixtures of experts by the native kernels; the experts stay quantised."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from luce.engine.native import layer_structs
from luce.engine.native.layer_structs import Mixture, Shared
from luce.engine.native.library import GROUP, Op
from luce.engine.native.tape import Tape
from luce.engine.native.tiles import StoredMatrix, TiledLinear
from luce.engine.ops.cpu.native import NativeOps, rounded
from luce.engine.ops.moe import AddMixture, Route, Routing


@dataclass(frozen=True, slots=True)
class NativeRoute:
    """`ops.moe.Route`; more experts than there is room for go to `otherwise`."""

    tape: Tape
    otherwise: Route

    def __call__(
        self, logits: torch.Tensor, num_chosen: int, *, norm_weights: bool, loads: torch.Tensor
    ) -> Routing:
        """The likeliest experts of each token."""
        tape, (tokens, count) = self.tape, logits.shape
        if count > layer_structs.MAX_EXPERTS:
            return self.otherwise(logits, num_chosen, norm_weights=norm_weights, loads=loads)
        source = tape.part_address(logits)
        # Experts' numbers have 8 bytes.
        chosen = tape.empty(tokens, 2 * num_chosen).view(torch.int64)
        weights = tape.empty(tokens, num_chosen)
        mixture = Mixture(
            num_experts=count,
            num_chosen=num_chosen,
            norm_weights=norm_weights,
            logits_stride=logits.stride(0),
            chosen=chosen.data_ptr(),
            weights=weights.data_ptr(),
            loads=loads.data_ptr(),
        )
        op = Op(kind=layer_structs.ROUTE, in_=source, more=ctypes.addressof(mixture))
        tape.emit(tokens, [op], (mixture, loads))
        return Routing(chosen, weights)


class NativeExperts:
    """`ops.moe.ExpertMlp` of stored matrices, those of all experts one below the other.

    Args:
        tape: where operations go.
        gate_up: gate [E * F, hidden] and up, likewise.
        down: [E * hidden, F].
        count: E.
    """

    def __init__(self, tape: Tape, gate_up: TiledLinear, down: TiledLinear, count: int) -> None:
        self._tape = tape
        self._gate_up = gate_up
        self._down = down
        self._count = count

    def __call__(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        """[T, hidden] → [T, hidden]; a token's experts are summed in their own order."""
        tape, (tokens, num_chosen) = self._tape, routing.experts.shape
        chosen, weights = routing.experts.contiguous(), routing.weights.contiguous()
        size, hidden, entries = self._down.columns, self._gate_up.columns, tokens * num_chosen
        rows, ops = rounded(tape, x, None)
        inner, out = tape.rounded(entries, size), tape.empty(tokens, hidden)
        order = tape.empty(1, 2 * self._count + 2 + entries)
        mixture = Mixture(
            num_experts=self._count,
            num_chosen=num_chosen,
            chosen=tape.part_address(chosen),
            weights=tape.part_address(weights),
            order=order.data_ptr(),
        )
        more = ctypes.addressof(mixture)
        ops += [
            Op(kind=layer_structs.GROUP_ROWS, more=more),
            Op(
                kind=layer_structs.EXPERT_GATED,
                width=size,
                linear=self._gate_up.address,
                in_rows=rows.address,
                out_rows=inner.address,
                more=more,
            ),
            Op(
                kind=layer_structs.EXPERT_DOWN,
                width=hidden,
                linear=self._down.address,
                in_rows=inner.address,
                out=out.data_ptr(),
                more=more,
            ),
        ]
        tape.emit(tokens, ops, (mixture, self._gate_up, self._down))
        return out

    @property
    def nbytes(self) -> int:
        """Memory of the tiles."""
        return self._gate_up.nbytes + self._down.nbytes


def native_experts(
    native: NativeOps, stored: list[StoredMatrix], shape: tuple[int, int, int]
) -> NativeExperts | None:
    """Experts of gate, up and down, or None where a size or a type has no kernels.

    Args:
        native: whose kernels.
        stored: the three of all experts, each as one matrix.
        shape: E, F, hidden.
    """
    count, size, hidden = shape
    if size % GROUP or hidden % GROUP or count > layer_structs.MAX_EXPERTS:
        return None
    if hidden > layer_structs.MAX_EXPERT_COLUMNS:
        return None
    gate_up, down = stored[:2], stored[2:]
    if not (native.store.accepts(gate_up) and native.store.accepts(down)):
        return None
    tiles = native.store.linear(gate_up, None), native.store.linear(down, None)
    native.has_experts = True
    return NativeExperts(native.tape, *tiles, count)


@dataclass(frozen=True, slots=True)
class NativeAddMixture:
    """`ops.moe.AddMixture`; rows that are not whole vectors go to `otherwise`."""

    tape: Tape
    otherwise: AddMixture

    def __call__(
        self,
        hidden: torch.Tensor,
        mixed: torch.Tensor,
        shared: torch.Tensor | None,
        gate: torch.Tensor | None,
    ) -> torch.Tensor:
        """hidden + mixed + sigmoid(gate) * shared, in place."""
        tape, (tokens, width) = self.tape, hidden.shape
        if width % layer_structs.LANES:
            return self.otherwise(hidden, mixed, shared, gate)
        more = Shared()
        if shared is not None and gate is not None:
            more.shared = tape.address(shared)
            more.gate, more.gate_stride = tape.part_address(gate), gate.stride(0)
        op = Op(
            kind=layer_structs.ADD_MIXTURE,
            width=width,
            in_=tape.address(mixed),
            out=tape.address(hidden),
            more=ctypes.addressof(more),
        )
        tape.emit(tokens, [op], (more,))
        return hidden
