"""Parts of a hybrid's layer on a GPU, alone: whole mixtures, grouped products, advancing states.

    PYTHONPATH=src:. python -m bench.engine.hybrid_parts [--rows 1,4,16,64] [--sweep]

The shape is that of 35B-A3B, a layer of Q4_K. A mixture's calls rotate among inputs that choose
other experts, so weights are cold; replayed as one graph. The floor is what is moved at the copy
rate. "stepwise" is the way taken where the fused kernels do not start.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from bench.engine.hybrid import experts_hit
from bench.engine.hybrid_shapes import hybrid_hparams
from bench.engine.quant import copy_bandwidth, timed_graph

from luce.engine.layers.moe import MixtureOfExperts, SharedExpert
from luce.engine.models.qwen35 import delta_shape
from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.gated_delta import DeltaWeights, LayerState, StateBatch
from luce.engine.ops.moe import Router
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.triton.gated_delta import DeviceGatedDelta, stepwise_gated_delta
from luce.engine.ops.triton.gated_mlp import silu_and_mul
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.ops.triton.moe import add_mixture
from luce.engine.ops.triton.moe_few import FewTiling, FewTokens
from luce.engine.ops.triton.moe_fuse import few_tokens
from luce.engine.ops.triton.moe_quant import (
    DEFAULT_QUANT_TILINGS,
    QuantExperts,
    QuantMoeTiling,
    QuantMoeTilings,
)
from luce.engine.ops.triton.moe_route import route
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.ops.triton.rms_norm import rms_norm
from luce.engine.quant_planes import QuantPlanes, repack
from luce.testing.quant_blocks import random_blocks

_HPARAMS = hybrid_hparams("35B-A3B")
_TYPE = "Q4_K"
_INPUTS = 16
_PROMPTS = (512, 2048, 8192)


@dataclass(frozen=True)
class Setup:
    """A layer's mixture.

    Attributes:
        mixture: all of it.
        gate_up: planes of the experts.
        down: likewise.
        shared_bytes: of what every token reads.
        copy: bytes a second.
    """

    mixture: MixtureOfExperts
    gate_up: QuantPlanes
    down: QuantPlanes
    shared_bytes: int
    copy: float


def planes_of(rows: int, columns: int) -> QuantPlanes:
    generator = torch.Generator(device="cuda").manual_seed(rows)
    return repack(_TYPE, random_blocks(_TYPE, rows, columns, generator), rows, columns)


def made(copy: float) -> Setup:
    experts, hidden = _HPARAMS.experts, _HPARAMS.hidden_size
    assert experts is not None
    count, size = experts.num_experts, experts.size
    gate_up = planes_of(2 * count * size, hidden)
    down = planes_of(count * hidden, size)
    shared = SharedExpert(
        TritonQuantLinear([planes_of(2 * experts.shared_size, hidden)], None),
        TritonQuantLinear([planes_of(hidden, experts.shared_size)], None),
    )
    weight = torch.randn(count + 1, hidden, device="cuda", dtype=torch.bfloat16) * hidden**-0.5
    gate = DeviceLinear(weight, None)
    loads = torch.zeros(count, dtype=torch.int64, device="cuda")
    router = Router(gate, count, experts.num_per_token, norm_weights=True, op=route, loads=loads)
    packed = QuantExperts(gate_up, down, count, silu_and_mul)
    mixture = MixtureOfExperts(
        norm=NormWeight(torch.ones(hidden, dtype=torch.bfloat16, device="cuda"), 1e-6),
        router=router,
        experts=packed,
        shared=shared,
        rms_norm=rms_norm,
        silu_and_mul=silu_and_mul,
        add=add_mixture,
        few=few_tokens(packed, shared.gate_up, shared.down, router),
    )
    nbytes = gate.nbytes + shared.gate_up.nbytes + shared.down.nbytes
    return Setup(mixture, gate_up, down, nbytes, copy)


def inputs(rows: int) -> list[torch.Tensor]:
    size = _HPARAMS.hidden_size
    shape = (_INPUTS, rows, size)
    return list(torch.randn(*shape, device="cuda", dtype=torch.bfloat16).unbind())


def time_of(forward: Callable[[torch.Tensor], object], rows: int) -> float:
    return timed_graph([partial(forward, x) for x in inputs(rows)])


def show_mixture(setup: Setup, rows: int, *, sweep: bool) -> None:
    """All of it, fused and step by step, and how far apart their results are."""
    experts = _HPARAMS.experts
    assert experts is not None
    one = (setup.gate_up.nbytes + setup.down.nbytes) / experts.num_experts
    floor = (experts_hit(_HPARAMS, rows) * one + setup.shared_bytes) / setup.copy
    mixture = setup.mixture
    stepwise = replace(mixture, few=None)
    slow = time_of(stepwise.forward, rows)
    text = f"mixture, {rows} rows: floor {floor * 1e6:.1f} us, stepwise {slow * 1e6:.1f}"
    few = mixture.few
    if not isinstance(few, FewTokens) or rows > few.most_tokens:
        print(text, "fused: none for these", flush=True)
        return
    seconds = time_of(mixture.forward, rows)
    x = inputs(rows)[0]
    expected = stepwise.forward(x.clone()).double()
    apart = (mixture.forward(x.clone()).double() - expected).norm() / expected.norm()
    print(text, f"fused {seconds * 1e6:.1f} ({floor / seconds:.0%}), apart {apart:.1e}", flush=True)
    for tiling in few_tilings() if sweep else ():
        cut = replace(mixture, few=replace(few, tilings=(tiling, tiling)))
        seconds = time_of(cut.forward, rows)
        print(f"  {tiling}: {seconds * 1e6:.1f} us ({floor / seconds:.0%})", flush=True)


def few_tilings() -> Iterator[FewTiling]:
    for inner, turns in product((4, 8, 16), (1, 4, 8)):
        yield FewTiling(inner, outer_turns=turns)


def show_prompt(setup: Setup, tokens: int, *, sweep: bool) -> None:
    """The experts' products of a prompt."""
    experts = _HPARAMS.experts
    assert experts is not None
    flops = 6.0 * tokens * experts.num_per_token * experts.size * _HPARAMS.hidden_size
    router = setup.mixture.router
    for tilings in tile_tilings() if sweep else (DEFAULT_QUANT_TILINGS,):
        cut = QuantExperts(setup.gate_up, setup.down, experts.num_experts, silu_and_mul, tilings)

        def call(x: torch.Tensor, cut: QuantExperts = cut) -> Callable[[], object]:
            routing, _ = router.choose(x)
            return lambda: cut(x, routing)

        calls = [call(x) for x in inputs(tokens)[:4]]
        seconds = timed_graph(calls)
        rate = flops / seconds / 1e12
        print(f"experts, prompt of {tokens}: {seconds * 1e6:.0f} us, {rate:.0f} TFLOP/s", tilings)


def tile_tilings() -> Iterator[QuantMoeTilings]:
    yield (QuantMoeTiling(64, 64, 4),)
    yield (QuantMoeTiling(64, 128, 2),)
    yield (QuantMoeTiling(64, 128, 4, warps=8),)
    yield (QuantMoeTiling(128, 64, 4, warps=8),)
    yield (QuantMoeTiling(128, 128, 2, warps=8),)


def show_states(rows: int, copy: float) -> None:
    """A layer of linear attention between its products."""
    linear = _HPARAMS.linear_attention
    assert linear is not None
    shape, device = delta_shape(linear), torch.device("cuda")
    layers = max(4, 64 // rows)

    def normal(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(*sizes, device=device).to(dtype)

    heads = shape.num_value_heads
    weights = DeltaWeights(
        conv=normal(shape.channels, shape.conv_width),
        decay=-torch.rand(heads, device=device),
        dt_bias=normal(heads, dtype=torch.float32),
        norm=normal(shape.value_head_dim),
        eps=1e-6,
    )
    states = [
        LayerState(
            normal(rows, shape.conv_elements),
            normal(rows, shape.recurrent_elements, dtype=torch.float32),
        )
        for _ in range(layers)
    ]
    index = torch.arange(rows + 1, dtype=torch.int32, device=device)
    tensors = AttentionTensors(index[None], index[:rows], index[:rows], index, rows, 0)
    batch, op = StateBatch((), (), tensors), DeviceGatedDelta(rows, device)
    token = normal(rows, shape.projected_size)

    def fused_call(state: LayerState) -> Callable[[], object]:
        return lambda: op(token, shape, weights, state, batch)

    def stepwise_call(state: LayerState) -> Callable[[], object]:
        return lambda: stepwise_gated_delta(token, shape, weights, state, tensors)

    fused, apart = (
        timed_graph([call(state) for state in states]) for call in (fused_call, stepwise_call)
    )
    moved = rows * (8 * shape.recurrent_elements + 4 * shape.conv_elements)
    floor = moved / copy
    print(
        f"states, {rows} rows: floor {floor * 1e6:.1f} us, stepwise {apart * 1e6:.1f}, "
        f"fused {fused * 1e6:.1f} ({floor / fused:.0%})",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,4,16,64")
    parser.add_argument("--sweep", action="store_true", help="all cuts of the kernels")
    options = parser.parse_args()
    logging.basicConfig()
    copy = copy_bandwidth()
    print(f"copy {copy / 1e12:.2f} TB/s")
    with torch.inference_mode():
        setup = made(copy)
        for rows in map(int, options.rows.split(",")):
            show_mixture(setup, rows, sweep=options.sweep)
            show_states(rows, copy)
        for tokens in _PROMPTS:
            show_prompt(setup, tokens, sweep=options.sweep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
