"""Layers of tiny Qwen3.5 hybrids and mixtures of experts, and how GGUF files store them.

Weights are kept as Hugging Face has them: value heads grouped, norms as offsets, log(A), gate and
up of all experts in one tensor.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from luce.loaders.hparams import Experts, LinearAttention

Array = npt.NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]
OFFSET_NORMS = ("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight")
_ALL_VALUE_HEADS = ("in_proj_z", "in_proj_a", "in_proj_b", "A_log", "dt_bias")


def linear_shapes(linear: LinearAttention, hidden: int) -> Shapes:
    """Parameters of a gated DeltaNet layer."""
    heads, values = linear.num_value_heads, linear.value_size
    return {
        "linear_attn.in_proj_qkv.weight": (linear.conv_channels, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (linear.conv_channels, 1, linear.conv_kernel),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (linear.value_head_dim,),
        "linear_attn.out_proj.weight": (hidden, values),
    }


def mlp_shapes(prefix: str, size: int, hidden: int) -> Shapes:
    """Parameters of a gated feed-forward block."""
    return {
        f"{prefix}.gate_proj.weight": (size, hidden),
        f"{prefix}.up_proj.weight": (size, hidden),
        f"{prefix}.down_proj.weight": (hidden, size),
    }


def mixture_shapes(experts: Experts, hidden: int) -> Shapes:
    """Parameters of a mixture of experts."""
    shapes: Shapes = {
        "mlp.gate.weight": (experts.num_experts, hidden),
        "mlp.experts.gate_up_proj": (experts.num_experts, 2 * experts.size, hidden),
        "mlp.experts.down_proj": (experts.num_experts, hidden, experts.size),
    }
    if experts.shared_size:
        shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
        shapes |= mlp_shapes("mlp.shared_expert", experts.shared_size, hidden)
    return shapes


def mtp_shapes(hidden: int, block: Shapes) -> Shapes:
    """Parameters of one drafting layer, whose block is like one of full attention."""
    shapes = {f"mtp.layers.0.{name}": shape for name, shape in block.items()}
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return (
        shapes
        | {"mtp.fc.weight": (hidden, 2 * hidden)}
        | {f"mtp.{name}.weight": (hidden,) for name in norms}
    )


def hybrid_values(
    name: str, values: npt.NDArray[np.float64], *, offset_norms: bool
) -> npt.NDArray[np.float64] | None:
    """Standard normal numbers turned into a parameter; None: nothing special about this one."""
    if name.endswith("A_log"):
        # Heads that forget within a few tokens beside heads that hardly do.
        return values * 1.5 - 2.0
    if name.endswith(("conv1d.weight", "mlp.gate.weight", "shared_expert_gate.weight")):
        return values * 0.3
    if name.endswith("dt_bias"):
        return values * 0.5
    if offset_norms and name.endswith(OFFSET_NORMS):
        return values * 0.1
    return None


def gguf_values(name: str, values: Array, linear: LinearAttention) -> Array:
    """A hybrid's parameter as llama.cpp's converter writes it.

    Args:
        name: Hugging Face's.
    """
    if name.endswith(OFFSET_NORMS):
        return values + np.float32(1.0)
    module = name.split(".linear_attn.")[-1].split(".")[0]
    if module in _ALL_VALUE_HEADS:
        values = tiled(values, linear, axis=0)
        return -np.exp(values) if module == "A_log" else values
    if module in ("in_proj_qkv", "conv1d"):
        # Of queries, keys and values only the values have value heads.
        keys = 2 * linear.key_size
        values = np.concatenate([values[:keys], tiled(values[keys:], linear, axis=0)])
        return values.squeeze(1) if module == "conv1d" else values
    return tiled(values, linear, axis=1) if module == "out_proj" else values


def tiled(values: Array, linear: LinearAttention, axis: int) -> Array:
    """Value heads along an axis, from key * ratio + i to i * keys + key."""
    ratio = linear.num_value_heads // linear.num_key_heads
    heads = np.moveaxis(values, axis, 0)
    split = heads.reshape(linear.num_key_heads, ratio, -1, *heads.shape[1:])
    joined = split.swapaxes(0, 1).reshape(heads.shape)
    return np.ascontiguousarray(np.moveaxis(joined, 0, axis))


def gguf_experts(name: str, values: Array) -> dict[str, Array]:
    """Experts' gate and up as the two tensors GGUF files have."""
    gate, up = np.split(values, 2, axis=1)
    return {
        name.replace("gate_up_proj", "gate_proj.weight"): np.ascontiguousarray(gate),
        name.replace("gate_up_proj", "up_proj.weight"): np.ascontiguousarray(up),
    }


def single_experts(name: str, values: Array) -> dict[str, Array]:
    """Experts' matrices one by one, as older folders and those of Qwen3-MoE have them."""
    stem, _, module = name.rpartition(".")
    parts = {"down_proj": values}
    if module == "gate_up_proj":
        gate, up = np.split(values, 2, axis=1)
        parts = {"gate_proj": gate, "up_proj": up}
    return {
        f"{stem}.{index}.{part}.weight": np.ascontiguousarray(matrix)
        for part, stack in parts.items()
        for index, matrix in enumerate(stack)
    }
