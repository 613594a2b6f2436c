"""Gated DeltaNet as the plain recurrence, token by token in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState, StateBatch

_KEY_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What a sequence's recurrence reads, float32, for T of its tokens.

    Attributes:
        queries: [T, Hv, Dk], of length 1 / root of Dk.
        keys: [T, Hv, Dk], of length 1.
        values: [T, Hv, Dv].
        gates: [T, Hv]: beta.
        kept: [T, Hv]: exp(g), the part of the state that stays.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    gates: torch.Tensor
    kept: torch.Tensor

    def part(self, start: int, stop: int) -> _Inputs:
        """Some of the tokens."""
        each = slice(start, stop)
        return _Inputs(
            self.queries[each],
            self.keys[each],
            self.values[each],
            self.gates[each],
            self.kept[each],
        )


def gated_delta(
    projected: torch.Tensor,
    shape: DeltaShape,
    weights: DeltaWeights,
    state: LayerState,
    batch: StateBatch,
) -> torch.Tensor:
    """`ops.gated_delta.GatedDelta`; the oracle, for any device and type."""
    heads = shape.num_value_heads
    qkv, z, beta, a = torch.split_with_sizes(
        projected, [shape.channels, shape.value_size, heads, heads], dim=-1
    )
    mixed = _convolved(qkv, shape, weights.conv, state.conv, batch)
    # In float64: PyTorch rounds float32 functions differently at the end of an array, and these
    # have a few numbers a token.
    kept = (weights.decay * F.softplus(a.double() + weights.dt_bias)).exp_().float()
    gates = beta.double().sigmoid_().to(beta.dtype).float()
    inputs = _Inputs(*_heads(mixed, shape), gates, kept)
    out = torch.empty_like(inputs.values)
    for slot, start, stop in _runs(batch):
        memory = state.recurrent[slot].view(heads, shape.key_head_dim, shape.value_head_dim)
        _recur(inputs.part(start, stop), memory, out[start:stop])
    return _gated_norm(out.to(projected.dtype), z.reshape(len(z), heads, -1), weights)


def _runs(batch: StateBatch) -> list[tuple[int, int, int]]:
    starts = batch.query_starts
    return list(zip(batch.slots, starts[:-1], starts[1:], strict=True))


def _convolved(
    qkv: torch.Tensor,
    shape: DeltaShape,
    weight: torch.Tensor,
    states: torch.Tensor,
    batch: StateBatch,
) -> torch.Tensor:
    """silu of the causal convolution: [T, C]."""
    width = shape.conv_width
    taps = weight.t()
    out = torch.empty_like(qkv)
    for slot, start, stop in _runs(batch):
        tail = states[slot].view(width - 1, shape.channels)
        window = torch.cat([tail, qkv[start:stop]])
        tail.copy_(window[-(width - 1) :])
        count = stop - start
        total = window[:count] * taps[0]
        for tap in range(1, width):
            total.addcmul_(window[tap : tap + count], taps[tap])
        out[start:stop] = total
    return F.silu(out, inplace=True)


def _heads(
    mixed: torch.Tensor, shape: DeltaShape
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys of every value head, f32 [T, Hv, Dk], and values [T, Hv, Dv]."""
    ratio = shape.num_value_heads // shape.num_key_heads
    size = shape.key_size
    queries, keys, values = torch.split_with_sizes(
        mixed.float(), [size, size, shape.value_size], dim=-1
    )

    def spread(x: torch.Tensor) -> torch.Tensor:
        by_head = x.reshape(len(x), shape.num_key_heads, -1)
        scale = torch.rsqrt(by_head.square().sum(-1, keepdim=True) + _KEY_EPS)
        by_head = by_head * scale
        if shape.is_tiled:
            return by_head.repeat(1, ratio, 1)
        return by_head.repeat_interleave(ratio, dim=1)

    values = values.reshape(len(mixed), shape.num_value_heads, -1)
    return spread(queries) * shape.key_head_dim**-0.5, spread(keys), values


def _recur(inputs: _Inputs, state: torch.Tensor, out: torch.Tensor) -> None:
    """Advance a state [Hv, Dk, Dv] by a sequence's tokens; results to out [T, Hv, Dv].

    Both products with the old state are taken at once, and o follows from its parts:
    S^T q = exp(g) S_old^T q + (k . q) e.
    """
    reads = torch.stack((inputs.keys, inputs.queries), dim=2)
    overlaps = (inputs.keys * inputs.queries).sum(-1)[..., None, None]
    rows = zip(
        reads.unbind(),
        inputs.keys.unsqueeze(-1).unbind(),
        inputs.values.unsqueeze(-2).unbind(),
        overlaps.unbind(),
        inputs.gates[..., None, None].unbind(),
        inputs.kept[..., None, None].unbind(),
        out.unsqueeze(-2).unbind(),
        strict=True,
    )
    for read, key, value, overlap, gate, kept, result in rows:
        old = torch.bmm(read, state).mul_(kept)
        error = (value - old[:, :1]).mul_(gate)
        state.mul_(kept).addcmul_(key, error)
        torch.addcmul(old[:, 1:], overlap, error, out=result)


def _gated_norm(out: torch.Tensor, z: torch.Tensor, weights: DeltaWeights) -> torch.Tensor:
    """Norm per head, then silu(z): [T, Hv * Dv]."""
    wide = out.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + weights.eps)
    normed = (wide * scale).to(out.dtype) * weights.norm
    return (normed * F.silu(z.float())).to(out.dtype).flatten(1)
