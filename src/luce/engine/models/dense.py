"""Decoder-only transformers: Llama, Qwen2 and Qwen3 are one family.

They differ in hyper-parameters alone: biases on q, k and v (Qwen2), a norm per head on q and k
(Qwen3), tied or untied output, a mixture of experts in place of the feed-forward block, and which
rotary pairs the file's rows are laid out for. Families with other layers build on this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from luce.engine.context import ForwardContext
from luce.engine.fp8_weights import Fp8Matrix
from luce.engine.layers.attention import SelfAttention
from luce.engine.layers.embedding import (
    Embedding,
    Fp8Embedding,
    QuantEmbedding,
    TokenEmbedding,
    lookup_table,
)
from luce.engine.layers.mlp import GatedMlp
from luce.engine.layers.norm import Norm
from luce.engine.layers.rotary import RotaryTable
from luce.engine.models.base import Parameters
from luce.engine.models.folding import NormFolding
from luce.engine.models.mixture import mixture
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.cpu.native import NativeEmbedding
from luce.engine.ops.cpu.native_plain import native_linear
from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormsItself, NormWeight
from luce.engine.ops.qkv import HeadNorms
from luce.engine.ops.select import OpSet
from luce.engine.ops.step_tables import StepTables
from luce.loaders.hparams import HParams

_EMBEDDING = "embed_tokens.weight"


class Mixer(Protocol):
    """Attention of whatever kind."""

    def forward(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """hidden + mixer(norm(hidden)), [T, hidden]; `hidden` may be overwritten."""


class FeedForward(Protocol):
    """One feed-forward block, or a mixture of them."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden + block(norm(hidden)), [T, hidden]; `hidden` may be overwritten."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention and feed-forward, each behind a norm and around a residual."""

    attention: Mixer
    mlp: FeedForward

    def forward(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.mlp.forward(self.attention.forward(hidden, ctx))


class DenseModel:
    """A model of layers that a builder knows to build."""

    def __init__(self, builder: DenseBuilder) -> None:
        self._hparams = builder.hparams
        self._rotary = builder.rotary()
        self._embedding = builder.embedding()
        self._layers = [builder.layer(index) for index in range(self._hparams.num_layers)]
        self._norm = builder.final_norm()
        self._head = builder.head(self._embedding)
        builder.finish()
        self.nbytes = builder.linear_bytes + self._embedding.nbytes + self._rotary.nbytes
        self.expert_loads = tuple(builder.expert_loads)

    @property
    def vocab_size(self) -> int:
        return self._hparams.vocab_size

    def rotary(self, positions: torch.Tensor) -> torch.Tensor:
        return self._rotary.lookup(positions)

    @property
    def step_tables(self) -> StepTables:
        return StepTables(
            self._rotary.table, lookup_table(self._embedding), self._norm.weight.dtype
        )

    def forward(self, input_ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        hidden = ctx.embedded
        if hidden is None:
            hidden = self._embedding.forward(input_ids)
        for index, layer in enumerate(self._layers):
            hidden = layer.forward(hidden, ctx)
            if ctx.tap is not None:
                ctx.tap.take(index, hidden)
        return hidden if ctx.leaves_norm else self._norm.forward(hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(hidden)

    def normed_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if isinstance(self._head, NormsItself):
            norm = NormWeight(self._norm.weight, self._norm.eps)
            logits = self._head.normed(hidden, norm)
            if logits is not None:
                return logits
        return self._head(self._norm.forward(hidden))


class DenseBuilder:
    """Builds the parts of a `DenseModel` from a checkpoint's parameters, in file order.

    Attributes:
        hparams: hyper-parameters.
        parameters: the checkpoint's.
        ops: implementations.
        heads: of attention.
        dtype: what the model computes in.
        folding: of norms into products.
        linear_bytes: memory of the matrices built so far.
        expert_loads: counters of the mixtures built so far.
    """

    def __init__(
        self, hparams: HParams, parameters: Parameters, ops: OpSet, max_positions: int
    ) -> None:
        self.hparams = hparams
        self.parameters = parameters
        self.ops = ops
        self._max_positions = max_positions
        self.heads = HeadShape(hparams.num_heads, hparams.num_kv_heads, hparams.head_dim)
        # The norm is small and always there: it shows the type and device in use.
        self._final_norm = parameters.vector(("norm.weight", (hparams.hidden_size,)))
        self.dtype = self._final_norm.dtype
        self.folding = NormFolding(ops, self.dtype)
        self.linear_bytes = 0
        self.expert_loads: list[torch.Tensor] = []

    def rotary(self) -> RotaryTable:
        divisors = self.parameters.optional_vector("rope_freqs", (self.hparams.rotated_dim // 2,))
        device = self._final_norm.device
        return RotaryTable(self.hparams, self._max_positions, divisors, device)

    def embedding(self) -> TokenEmbedding:
        name, shape = _EMBEDDING, (self.hparams.vocab_size, self.hparams.hidden_size)
        if self.ops.native is not None:
            table = self.ops.native.embedding(*self.parameters.stored((name, shape)))
            if table is not None:
                return table
        quantised = self.ops.quantised
        if quantised is not None:
            planes = self.parameters.quantised((name, shape))
            if planes is not None:
                return QuantEmbedding(planes[0], self.dtype, quantised.lookup)
        if self.ops.fp8 is not None:
            for part in self.parameters.fp8((name, shape)) or ():
                if isinstance(part, Fp8Matrix):
                    return Fp8Embedding(part, self.dtype, self.ops.fp8.lookup)
        return Embedding(self.parameters.table(name, shape), self.dtype)

    def head(self, embedding: TokenEmbedding) -> Linear:
        """The output matrix; tied to the embedding it is made from the table there already."""
        name = "lm_head.weight"
        if self.hparams.tie_word_embeddings:
            name = _EMBEDDING
            if isinstance(embedding, NativeEmbedding):
                return embedding.head()
            if isinstance(embedding, QuantEmbedding):
                assert self.ops.quantised is not None
                return self.ops.quantised.pack_linear([embedding.planes], None)
            if isinstance(embedding, Fp8Embedding):
                assert self.ops.fp8 is not None
                return self.ops.fp8.pack_linear([embedding.matrix], None)
            if isinstance(embedding, Embedding) and embedding.table.dtype == self.dtype:
                head = self.ops.pack_linear(embedding.table, None)
                self.linear_bytes += 0 if head.holds(embedding.table) else head.nbytes
                return head
        return self.linear((name, self.hparams.vocab_size), columns=self.hparams.hidden_size)

    def finish(self) -> None:
        """Wait for the parameters and have norms in those of products where they go."""
        self.parameters.finish()
        self.folding.finish()

    def norm(self, name: str) -> NormWeight:
        weight = self.norm_weight(name, self.hparams.hidden_size)
        return NormWeight(weight, self.hparams.rms_norm_eps)

    def norm_weight(self, name: str, size: int) -> torch.Tensor:
        """What a norm multiplies by, [size]; files may store its distance from 1."""
        if self.hparams.norm_is_offset:
            return (self.parameters.floats(name, (size,)) + 1.0).to(self.dtype)
        return self.parameters.vector((name, (size,)))

    def final_norm(self) -> Norm:
        norm = self.norm("norm.weight")
        return Norm(norm.weight, norm.eps, self.ops.rms_norm)

    def layer(self, index: int) -> DecoderLayer:
        prefix = f"layers.{index}."
        norm = f"{prefix}post_attention_layernorm.weight"
        experts = self.hparams.experts
        mlp: FeedForward
        if experts is None:
            mlp = self._mlp(f"{prefix}mlp.", norm)
        else:
            mlp = mixture(self, experts, f"{prefix}mlp.", norm)
        return DecoderLayer(self.attention(index, prefix), mlp)

    def attention(self, index: int, prefix: str) -> Mixer:
        """The layer's attention."""
        hparams = self.hparams
        norm = self.norm(f"{prefix}input_layernorm.weight")
        prefix = f"{prefix}self_attn."
        q_rows = hparams.num_heads * hparams.head_dim
        kv_rows = hparams.num_kv_heads * hparams.head_dim
        rows = (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows))
        bias = None
        if hparams.attention_bias:
            bias = self.parameters.vector(*((f"{prefix}{n}.bias", (r,)) for n, r in rows))
        weights = tuple((f"{prefix}{name}.weight", count) for name, count in rows)
        qkv = self.linear(*weights, columns=hparams.hidden_size, bias=bias)
        return SelfAttention(
            layer=index,
            heads=self.heads,
            norm=norm,
            qkv=qkv,
            output=self.linear((f"{prefix}o_proj.weight", hparams.hidden_size), columns=q_rows),
            head_norms=self.head_norms(prefix) if hparams.qk_norm else None,
            project=self.folding.project_qkv(norm, qkv),
        )

    def head_norms(self, prefix: str) -> HeadNorms:
        size = self.hparams.head_dim
        query, key = (self.norm_weight(f"{prefix}{name}_norm.weight", size) for name in "qk")
        return HeadNorms(query, key, self.hparams.rms_norm_eps)

    def _mlp(self, prefix: str, norm_name: str) -> GatedMlp:
        hidden, ffn = self.hparams.hidden_size, self.hparams.intermediate_size
        norm = self.norm(norm_name)
        parts = ((f"{prefix}gate_proj.weight", ffn), (f"{prefix}up_proj.weight", ffn))
        gate_up = self.linear(*parts, columns=hidden)
        return GatedMlp(
            norm=norm,
            gate_up=gate_up,
            down=self.linear((f"{prefix}down_proj.weight", hidden), columns=ffn),
            gated_product=self.folding.gated_product(norm, gate_up),
        )

    def linear(
        self, *parts: tuple[str, int], columns: int, bias: torch.Tensor | None = None
    ) -> Linear:
        linear = self._pack([(name, (rows, columns)) for name, rows in parts], bias)
        self.linear_bytes += linear.nbytes
        return linear

    def _pack(self, shaped: list[tuple[str, tuple[int, int]]], bias: torch.Tensor | None) -> Linear:
        """In tiles or planes if all parts can be, FP8 where a part is; else decoded as a whole."""
        if self.ops.native is not None:
            tiled = native_linear(self.ops.native, self.parameters.stored(*shaped), bias)
            if tiled is not None:
                return tiled
        if self.ops.quantised is not None:
            planes = self.parameters.quantised(*shaped)
            if planes is not None:
                return self.ops.quantised.pack_linear(planes, bias)
        if self.ops.fp8 is not None:
            stored = self.parameters.fp8(*shaped)
            if stored is not None:
                return self.ops.fp8.pack_linear(stored, bias)
        return self.ops.pack_linear(self.parameters.matrix(*shaped), bias)
