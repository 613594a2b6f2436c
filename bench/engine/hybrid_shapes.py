"""Hybrids and mixtures of the right shapes with random weights, as `bench.engine.shapes`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from bench.engine.shapes import (
    CHUNK,
    Fp8Parameters,
    QuantisedParameters,
    RandomParameters,
    Storage,
)

from luce.engine.device import Device
from luce.engine.engine import Blueprint, Engine
from luce.engine.fp8_weights import Fp8Matrix
from luce.engine.options import EngineOptions
from luce.engine.quant_planes import QuantPlanes
from luce.kv.spec import blocks_for
from luce.loaders.hparams import Experts, HParams, LayerType, LinearAttention
from luce.sizing.model_sizes import Sizing

_INTERVAL = 4


@dataclass(frozen=True)
class HybridSize:
    """What the sizes of Qwen3.5 differ in.

    Attributes:
        hidden: numbers of a hidden state.
        layers: in all; every fourth has full attention.
        heads: of queries, and of keys and values.
        head_dim: their size.
        value_heads: of a linear layer.
        delta_dim: size of its keys and values.
        key_heads: of a linear layer.
        feed_forward: rows of the gate; 0 for a mixture.
        experts: of a mixture.
        vocab: tokens.
    """

    hidden: int
    layers: int
    heads: tuple[int, int]
    value_heads: int
    feed_forward: int = 0
    experts: Experts | None = None
    head_dim: int = 256
    delta_dim: int = 128
    key_heads: int = 16
    vocab: int = 248320


_A3B = Experts(num_experts=256, num_per_token=8, size=512, shared_size=512, norm_weights=True)
_FEW = Experts(num_experts=16, num_per_token=4, size=64, shared_size=96, norm_weights=True)
_TINY = HybridSize(256, 4, (4, 2), 6, 512, head_dim=64, delta_dim=32, key_heads=2, vocab=1024)
SIZES = {
    "tiny": _TINY,
    "tiny-moe": replace(_TINY, feed_forward=0, experts=_FEW, head_dim=256),
    "27B": HybridSize(5120, 64, (24, 4), 48, 17408),
    "35B-A3B": HybridSize(2048, 40, (16, 2), 32, experts=_A3B),
}


def hybrid_hparams(name: str) -> HParams:
    """As transformers stores the model; "27B/4" has four layers of it."""
    name, _, layers = name.partition("/")
    size = SIZES[name]
    return hparams_of(replace(size, layers=int(layers)) if layers else size)


def hparams_of(size: HybridSize) -> HParams:
    """The same, of any size."""
    kinds: tuple[LayerType, ...] = tuple(
        "linear_attention" if (index + 1) % _INTERVAL else "full_attention"
        for index in range(size.layers)
    )
    return HParams(
        architecture="qwen35" if size.experts is None else "qwen35moe",
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.feed_forward,
        num_layers=size.layers,
        num_heads=size.heads[0],
        num_kv_heads=size.heads[1],
        head_dim=size.head_dim,
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        rope_scaling=None,
        rope_layout="half",
        context_length=262144,
        tie_word_embeddings=False,
        attention_bias=False,
        qk_norm=True,
        rotary_dim=size.head_dim // 4,
        gated_attention=True,
        norm_is_offset=True,
        linear_attention=LinearAttention(
            layer_types=kinds,
            num_key_heads=size.key_heads,
            num_value_heads=size.value_heads,
            key_head_dim=size.delta_dim,
            value_head_dim=size.delta_dim,
            conv_kernel=4,
            head_order="grouped",
            decay_is_log=True,
        ),
        experts=size.experts,
    )


class HybridPart(RandomParameters):
    """What a hybrid asks for beside matrices and norms.

    Attributes:
        expert_bytes: memory of one expert in all layers.
    """

    expert_bytes = 0

    def floats(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        values = self._normal(*shape, spread=1.0).float()
        if name.endswith("A_log"):
            return values * 1.5 - 2.0
        if name.endswith("linear_attn.norm.weight"):
            return 1.0 + 0.1 * values
        return values * (0.3 if name.endswith(("conv1d.weight", "dt_bias")) else 0.1)

    def experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gate_up, down = super().experts(prefix, shape)
        self.expert_bytes += (gate_up.nbytes + down.nbytes) // shape[0]
        return gate_up, down

    def quantised_experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[QuantPlanes, QuantPlanes] | None:
        count, size, hidden = shape
        gate_up = self.quantised((prefix, (2 * count * size, hidden)))
        down = self.quantised((prefix, (count * hidden, size)))
        if gate_up is None or down is None:
            return None
        nbytes = gate_up[0].nbytes + down[0].nbytes
        self.step_bytes -= nbytes
        self.expert_bytes += nbytes // count
        return gate_up[0], down[0]


class HybridParameters(HybridPart):
    """In the type that is computed in."""


class QuantisedHybridParameters(HybridPart, QuantisedParameters):
    """Matrices in blocks of a type, but for routers, which files leave plain."""

    def quantised(self, *parts: tuple[str, tuple[int, int]]) -> list[QuantPlanes] | None:
        return None if parts[0][0].endswith("mlp.gate.weight") else super().quantised(*parts)


class Fp8HybridParameters(HybridPart, Fp8Parameters):
    """Projections of FP8 numbers, experts' among them; all else is plain."""

    def fp8_experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[Fp8Matrix, Fp8Matrix] | None:
        del prefix
        count, size, hidden = shape
        gate_up = self._fp8(2 * count * size, hidden, band=size)
        down = self._fp8(count * hidden, size, band=hidden)
        self.expert_bytes += (gate_up.nbytes + down.nbytes) // count
        return gate_up, down


def hybrid_engine(
    name: str, device: Device, rows: int, pool_tokens: int, max_ctx: int, storage: Storage
) -> tuple[Engine, HybridPart]:
    """An engine that computes in bfloat16, not yet warmed up, and its parameters' sizes."""
    hparams = hybrid_hparams(name)
    parameters: HybridPart = HybridParameters(torch.bfloat16, device.torch)
    if storage.weights.startswith("FP8"):
        parameters = Fp8HybridParameters(device.torch, is_block=storage.weights == "FP8")
    elif storage.weights != "bf16":
        parameters = QuantisedHybridParameters(storage.weights, device.torch)
    options = EngineOptions(
        path=None,  # type: ignore[arg-type]
        device=device.name,
        max_concurrency=rows,
        max_ctx=max_ctx,
        kv_pool_tokens=pool_tokens,
        chunk=CHUNK,
        num_checkpoints=2,
    )
    blocks = blocks_for(pool_tokens, options.block_tokens)
    sizing = Sizing(max_ctx, blocks, weights_bytes=0, kv_bytes=0, scratch_bytes=0)
    blueprint = Blueprint(hparams.architecture, hparams, options, device, torch.bfloat16, sizing)
    with torch.inference_mode():
        return Engine(blueprint, parameters, lambda *_: None), parameters
