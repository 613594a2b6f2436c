"""Dense decoder-only transformers: Llama, Qwen2 and Qwen3 are one family.

They differ in hyper-parameters alone: biases on q, k and v (Qwen2), a norm per head on q and k
(Qwen3), tied or untied output, and which rotary pairs the file's rows are laid out for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from luce.engine.context import ForwardContext
from luce.engine.layers.attention import SelfAttention
from luce.engine.layers.embedding import Embedding
from luce.engine.layers.mlp import GatedMlp
from luce.engine.layers.norm import Norm
from luce.engine.layers.rotary import RotaryTable
from luce.engine.models.base import Parameters
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.linear import Linear
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.qkv import HeadNorms
from luce.engine.ops.select import OpSet
from luce.kv.spec import KVSpec
from luce.loaders.hparams import HParams


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention and feed-forward, each behind a norm and around a residual."""

    attention: SelfAttention
    mlp: GatedMlp

    def forward(self, hidden: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.mlp.forward(self.attention.forward(hidden, ctx))


def dense_kv_spec(hparams: HParams, block_tokens: int, element_bytes: int) -> KVSpec:
    """What a dense model keeps per token."""
    return KVSpec(
        kind="full",
        num_layers=hparams.num_layers,
        block_tokens=block_tokens,
        num_kv_heads=hparams.num_kv_heads,
        head_dim=hparams.head_dim,
        element_bytes=element_bytes,
    )


class DenseModel:
    """A Llama, Qwen2 or Qwen3 model."""

    def __init__(self, builder: DenseBuilder) -> None:
        self._hparams = builder.hparams
        self._rotary = builder.rotary()
        self._embedding = builder.embedding()
        self._layers = [builder.layer(index) for index in range(self._hparams.num_layers)]
        self._norm = builder.final_norm()
        self._head = builder.head(self._embedding)
        self.nbytes = builder.linear_bytes + self._embedding.table.nbytes + self._rotary.nbytes

    @property
    def vocab_size(self) -> int:
        return self._hparams.vocab_size

    def rotary(self, positions: torch.Tensor) -> torch.Tensor:
        return self._rotary.lookup(positions)

    def forward(self, input_ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        hidden = self._embedding.forward(input_ids)
        for layer in self._layers:
            hidden = layer.forward(hidden, ctx)
        return self._norm.forward(hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(hidden).float()


class DenseBuilder:
    """Builds the parts of a `DenseModel` from a checkpoint's parameters, in file order.

    Attributes:
        linear_bytes: memory of the matrices built so far.
    """

    def __init__(
        self, hparams: HParams, parameters: Parameters, ops: OpSet, max_positions: int
    ) -> None:
        self.hparams = hparams
        self._parameters = parameters
        self._ops = ops
        self._max_positions = max_positions
        self._heads = HeadShape(hparams.num_heads, hparams.num_kv_heads, hparams.head_dim)
        # The norm is small and always there: it shows the type and device in use.
        self._final_norm = parameters.vector(("norm.weight", (hparams.hidden_size,)))
        self.dtype = self._final_norm.dtype
        self.linear_bytes = 0

    def rotary(self) -> RotaryTable:
        divisors = self._parameters.optional_vector("rope_freqs", (self.hparams.head_dim // 2,))
        device = self._final_norm.device
        return RotaryTable(self.hparams, self._max_positions, divisors, device)

    def embedding(self) -> Embedding:
        shape = (self.hparams.vocab_size, self.hparams.hidden_size)
        return Embedding(self._parameters.table("embed_tokens.weight", shape), self.dtype)

    def head(self, embedding: Embedding) -> Linear:
        """The output matrix; tied to the embedding it is made from the table there already."""
        name, table = "lm_head.weight", embedding.table
        if self.hparams.tie_word_embeddings:
            name = "embed_tokens.weight"
            if table.dtype == self.dtype:
                head = self._ops.pack_linear(table, None)
                self.linear_bytes += 0 if head.holds(table) else head.nbytes
                return head
        return self._linear((name, self.hparams.vocab_size), columns=self.hparams.hidden_size)

    def norm(self, name: str) -> NormWeight:
        weight = self._parameters.vector((name, (self.hparams.hidden_size,)))
        return NormWeight(weight, self.hparams.rms_norm_eps)

    def final_norm(self) -> Norm:
        norm = self.norm("norm.weight")
        return Norm(norm.weight, norm.eps, self._ops.rms_norm)

    def layer(self, index: int) -> DecoderLayer:
        prefix = f"layers.{index}."
        return DecoderLayer(
            attention=self._attention(index, prefix),
            mlp=self._mlp(prefix),
        )

    def _attention(self, index: int, prefix: str) -> SelfAttention:
        hparams = self.hparams
        norm = self.norm(f"{prefix}input_layernorm.weight")
        prefix = f"{prefix}self_attn."
        q_rows = hparams.num_heads * hparams.head_dim
        kv_rows = hparams.num_kv_heads * hparams.head_dim
        rows = (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows))
        bias = None
        if hparams.attention_bias:
            bias = self._parameters.vector(*((f"{prefix}{n}.bias", (r,)) for n, r in rows))
        weights = tuple((f"{prefix}{name}.weight", count) for name, count in rows)
        return SelfAttention(
            layer=index,
            heads=self._heads,
            norm=norm,
            qkv=self._linear(*weights, columns=hparams.hidden_size, bias=bias),
            output=self._linear((f"{prefix}o_proj.weight", hparams.hidden_size), columns=q_rows),
            product=self._ops.product,
            head_norms=self._head_norms(prefix) if hparams.qk_norm else None,
            place_qkv=self._ops.place_qkv,
        )

    def _head_norms(self, prefix: str) -> HeadNorms:
        size = self.hparams.head_dim
        query, key = (
            self._parameters.vector((f"{prefix}{name}_norm.weight", (size,))) for name in "qk"
        )
        return HeadNorms(query, key, self.hparams.rms_norm_eps)

    def _mlp(self, prefix: str) -> GatedMlp:
        hidden, ffn = self.hparams.hidden_size, self.hparams.intermediate_size
        norm = self.norm(f"{prefix}post_attention_layernorm.weight")
        prefix = f"{prefix}mlp."
        gate_up = ((f"{prefix}gate_proj.weight", ffn), (f"{prefix}up_proj.weight", ffn))
        return GatedMlp(
            norm=norm,
            gate_up=self._linear(*gate_up, columns=hidden),
            down=self._linear((f"{prefix}down_proj.weight", hidden), columns=ffn),
            gated_product=self._ops.gated_product,
        )

    def _linear(
        self, *parts: tuple[str, int], columns: int, bias: torch.Tensor | None = None
    ) -> Linear:
        weight = self._parameters.matrix(*((name, (rows, columns)) for name, rows in parts))
        linear = self._ops.pack_linear(weight, bias)
        self.linear_bytes += linear.nbytes
        return linear
