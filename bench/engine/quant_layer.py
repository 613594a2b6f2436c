"""Products of a layer between the kernels that stand between them in a model.

    PYTHONPATH=src:. python -m bench.engine.quant_layer [--type Q4_K] [--rows 8,16,32,64]

Norm, qkv, a stand-in for attention, o, norm, gate and up, gate, down, as one graph of several
layers with weights of their own: kernels that start while the one before runs help or hinder each
other here as they do in a step. `nothing` is the same without products. Microseconds a layer.
"""

from __future__ import annotations

import argparse

import torch
from bench.engine.gpu import graphed, timed
from bench.engine.quant_products import SHAPES, Product, made, own_kernels, standing

from luce.engine.ops.triton.gated_mlp import silu_and_mul
from luce.engine.ops.triton.rms_norm import rms_norm
from luce.engine.quant_planes import QuantPlanes

LAYERS = 4
"""With weights of their own: more than the second-level cache holds."""
TURNS = 3


class Layers:
    """Matrices of several layers of one type."""

    def __init__(self, kind: str) -> None:
        self.layers = [
            {name: made(kind, *shape, seed) for name, shape in SHAPES.items()}
            for seed in range(LAYERS)
        ]
        self._norm = torch.ones(SHAPES["o"][0], device="cuda", dtype=torch.bfloat16)

    @property
    def planes(self) -> list[QuantPlanes]:
        return [each for layer in self.layers for each in layer.values()]

    def seconds(self, product: Product, tokens: int) -> float:
        """Of one layer."""
        x = torch.randn(tokens, self._norm.numel(), device="cuda").bfloat16()

        def applied(planes: QuantPlanes, x: torch.Tensor) -> torch.Tensor:
            out = x.new_empty(len(x), planes.rows)
            product(planes, x, out)
            return out

        def everything() -> None:
            hidden = x
            for layer in self.layers * TURNS:
                qkv = applied(layer["qkv"], rms_norm(hidden, self._norm, 1e-6))
                mixed = rms_norm(qkv[:, : self._norm.numel()], self._norm, 1e-6)
                hidden = applied(layer["o"], mixed)
                gate_up = applied(layer["gate_up"], rms_norm(hidden, self._norm, 1e-6))
                hidden = applied(layer["down"], silu_and_mul(gate_up))

        return timed(graphed(everything)) / LAYERS / TURNS

    def products(self) -> dict[str, Product]:
        """Those that stand, and none."""
        found = standing(self.planes)
        found["nothing"] = lambda planes, x, out: None
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--type", default="Q4_K")
    parser.add_argument("--rows", default="8,16,32,64")
    options = parser.parse_args()
    layers = Layers(options.type)
    products = layers.products()
    for tokens in map(int, options.rows.split(",")):
        own = own_kernels(layers.planes[0], tokens)
        for name, product in {**products, **own}.items():
            print(f"{tokens:3} rows {layers.seconds(product, tokens) * 1e6:7.1f} us  {name}")


if __name__ == "__main__":
    main()
