"""Every parameter a model is computed from, by its transformers name, with its shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from luce.loaders.checkpoint import Container
from luce.loaders.hparams import Experts, HParams, LinearAttention
from luce.loaders.tensor_names import expert_name

Shape = tuple[int, ...]
ExpertForm = Literal["fused", "stacked", "single"]
"""Experts' matrices: gate and up in one tensor of all experts, each in one, or one per expert."""


def model_tensors(hparams: HParams, experts_as: ExpertForm) -> Iterator[tuple[str, Shape]]:
    """Name and torch-order shape of every parameter.

    Args:
        experts_as: how the experts of a mixture are stored; see `expert_form`.
    """
    vocabulary = (hparams.vocab_size, hparams.hidden_size)
    yield "embed_tokens.weight", vocabulary
    yield "norm.weight", (hparams.hidden_size,)
    if not hparams.tie_word_embeddings:
        yield "lm_head.weight", vocabulary
    for layer in range(hparams.num_layers):
        shapes: dict[str, Shape] = {"input_layernorm.weight": (hparams.hidden_size,)}
        if hparams.layer_type(layer) == "full_attention":
            shapes |= _attention(hparams)
        elif hparams.linear_attention is not None:
            shapes |= _linear_attention(hparams.linear_attention, hparams.hidden_size)
        shapes["post_attention_layernorm.weight"] = (hparams.hidden_size,)
        if hparams.experts is None:
            shapes |= _mlp("mlp", hparams.intermediate_size, hparams.hidden_size)
        else:
            shapes |= _mixture(hparams.experts, hparams.hidden_size, experts_as)
        for name, shape in shapes.items():
            yield f"layers.{layer}.{name}", shape


def expert_form(
    container: Container, stored_name: Callable[[str], str], is_there: Callable[[str], bool]
) -> ExpertForm:
    """How a checkpoint stores the experts' matrices.

    Args:
        stored_name: from parameters to the checkpoint's tensors.
        is_there: whether it has such a tensor.
    """
    prefix = "layers.0.mlp.experts."
    if is_there(stored_name(f"{prefix}gate_up_proj.weight")):
        return "fused"
    if container == "gguf":
        return "stacked"
    single = expert_name(f"{prefix}gate_proj.weight", 0)
    return "single" if is_there(stored_name(single)) else "fused"


def stored_shape(container: Container, name: str, shape: Shape) -> Shape:
    """The shape a parameter has in a file: GGUF knows no dimensions of 1."""
    if container == "gguf" and name.endswith(("conv1d.weight", "shared_expert_gate.weight")):
        return tuple(size for size in shape if size != 1)
    return shape


def _attention(hparams: HParams) -> dict[str, Shape]:
    hidden, prefix = hparams.hidden_size, "self_attn."
    q_rows = hparams.num_heads * hparams.head_dim
    kv_rows = hparams.num_kv_heads * hparams.head_dim
    rows = {"q": q_rows * (2 if hparams.gated_attention else 1), "k": kv_rows, "v": kv_rows}
    shapes: dict[str, Shape] = {
        f"{prefix}{each}_proj.weight": (count, hidden) for each, count in rows.items()
    }
    shapes[f"{prefix}o_proj.weight"] = (hidden, q_rows)
    if hparams.attention_bias:
        shapes |= {f"{prefix}{each}_proj.bias": (count,) for each, count in rows.items()}
    if hparams.qk_norm:
        shapes |= {f"{prefix}{each}_norm.weight": (hparams.head_dim,) for each in "qk"}
    return shapes


def _linear_attention(linear: LinearAttention, hidden: int) -> dict[str, Shape]:
    prefix, heads = "linear_attn.", (linear.num_value_heads,)
    return {
        f"{prefix}in_proj_qkv.weight": (linear.conv_channels, hidden),
        f"{prefix}in_proj_z.weight": (linear.value_size, hidden),
        f"{prefix}in_proj_b.weight": (linear.num_value_heads, hidden),
        f"{prefix}in_proj_a.weight": (linear.num_value_heads, hidden),
        f"{prefix}conv1d.weight": (linear.conv_channels, 1, linear.conv_kernel),
        f"{prefix}A_log": heads,
        f"{prefix}dt_bias": heads,
        f"{prefix}norm.weight": (linear.value_head_dim,),
        f"{prefix}out_proj.weight": (hidden, linear.value_size),
    }


def _mlp(prefix: str, size: int, hidden: int) -> dict[str, Shape]:
    return {
        f"{prefix}.gate_proj.weight": (size, hidden),
        f"{prefix}.up_proj.weight": (size, hidden),
        f"{prefix}.down_proj.weight": (hidden, size),
    }


def _mixture(experts: Experts, hidden: int, form: ExpertForm) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"mlp.gate.weight": (experts.num_experts, hidden)}
    one = _mlp("mlp.experts", experts.size, hidden)
    if form == "single":
        for index in range(experts.num_experts):
            shapes |= {expert_name(name, index): shape for name, shape in one.items()}
    else:
        if form == "fused":
            one = {
                "mlp.experts.gate_up_proj.weight": (2 * experts.size, hidden),
                "mlp.experts.down_proj.weight": (hidden, experts.size),
            }
        shapes |= {name: (experts.num_experts, *shape) for name, shape in one.items()}
    if experts.shared_size:
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
        shapes |= _mlp("mlp.shared_expert", experts.shared_size, hidden)
    return shapes
