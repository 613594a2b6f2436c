"""Gated DeltaNet by its formulas in float64, and random layers of it."""

from __future__ import annotations

import numpy as np
import torch

from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState

SLOTS = 5


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


def random_weights(shape: DeltaShape) -> DeltaWeights:
    heads = shape.num_value_heads
    return DeltaWeights(
        conv=random(shape.channels, shape.conv_width, seed=1),
        decay=-random(heads, seed=2).exp(),
        dt_bias=random(heads, seed=3),
        norm=1 + 0.1 * random(shape.value_head_dim, seed=4),
        eps=1e-6,
    )


def random_state(shape: DeltaShape) -> LayerState:
    """Of every slot; strided, as a layer's part of all layers' is."""
    conv = random(SLOTS, 2, shape.conv_elements, seed=5)[:, 1]
    return LayerState(conv, random(SLOTS, 3, shape.recurrent_elements, seed=6)[:, 2])


def formulas(
    projected: torch.Tensor,
    shape: DeltaShape,
    weights: DeltaWeights,
    state: LayerState,
    slot: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result of one sequence, and its convolution's and its recurrent state behind it."""
    heads, dim = shape.num_value_heads, shape.key_head_dim
    sizes = [shape.channels, shape.value_size, heads, heads]
    qkv, z, beta, a = torch.split_with_sizes(projected.double(), sizes, dim=1)
    window = torch.cat([state.conv[slot].double().view(-1, shape.channels), qkv])
    taps = weights.conv.double()
    count = len(qkv)
    total = torch.stack([window[tap : tap + count] * taps[:, tap] for tap in range(taps.shape[1])])
    mixed = total.sum(0) * total.sum(0).sigmoid()
    q, k, v = torch.split_with_sizes(
        mixed, [shape.key_size, shape.key_size, shape.value_size], dim=1
    )
    ratio = heads // shape.num_key_heads
    of_key = [h % shape.num_key_heads if shape.is_tiled else h // ratio for h in range(heads)]
    q, k = (each.view(-1, shape.num_key_heads, dim)[:, of_key] for each in (q, k))
    q, k = (each * (each.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for each in (q, k))
    q, v = q * dim**-0.5, v.view(-1, heads, shape.value_head_dim)
    softplus = torch.nn.functional.softplus(a + weights.dt_bias.double())
    kept = (weights.decay.double() * softplus).exp()
    memory = state.recurrent[slot].double().view(heads, dim, -1)
    out = []
    for token in range(len(qkv)):
        memory = memory * kept[token, :, None, None]
        error = v[token] - torch.einsum("hkv,hk->hv", memory, k[token])
        error = error * beta[token].sigmoid()[:, None]
        memory = memory + k[token][:, :, None] * error[:, None, :]
        out.append(torch.einsum("hkv,hk->hv", memory, q[token]))
    wide = torch.stack(out)
    wide = wide * (wide.square().mean(-1, keepdim=True) + weights.eps).rsqrt()
    gate = z.view(wide.shape)
    wide = wide * weights.norm.double() * gate * gate.sigmoid()
    return wide.flatten(1), window[-(shape.conv_width - 1) :].flatten(), memory.flatten()
