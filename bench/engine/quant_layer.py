"""Products of a layer between the kernels that stand between them in a model.

    PYTHONPATH=src:. python -m bench.engine.quant_layer [--size 27B] [--type Q4_K] [--rows 8,64]

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

SIZES = {
    "8B": SHAPES,
    # Of linear attention: queries, keys, values, gates and decays in one product.
    "27B": {
        "qkv": (16480, 5120),
        "o": (5120, 6144),
        "gate_up": (34816, 5120),
        "down": (5120, 17408),
    },
}
LAYERS = 4
"""With weights of their own: more than the second-level cache holds."""
TURNS = 3


class Layers:
    """Matrices of several layers of one size and type."""

    def __init__(self, size: str, kind: str) -> None:
        shapes = SIZES[size]
        self.layers = [
            {name: made(kind, *shape, seed) for name, shape in shapes.items()}
            for seed in range(LAYERS)
        ]
        self._hidden, self._mixed = shapes["o"]
        self._ones = torch.ones(self._mixed, device="cuda", dtype=torch.bfloat16)

    @property
    def planes(self) -> list[QuantPlanes]:
        return [each for layer in self.layers for each in layer.values()]

    def seconds(self, product: Product, tokens: int) -> float:
        """Of one layer."""
        x = torch.randn(tokens, self._hidden, device="cuda").bfloat16()

        def normed(x: torch.Tensor) -> torch.Tensor:
            return rms_norm(x, self._ones[: x.shape[1]], 1e-6)

        def applied(planes: QuantPlanes, x: torch.Tensor) -> torch.Tensor:
            out = x.new_empty(len(x), planes.rows)
            product(planes, x, out)
            return out

        def everything() -> None:
            hidden = x
            for layer in self.layers * TURNS:
                qkv = applied(layer["qkv"], normed(hidden))
                hidden = applied(layer["o"], normed(qkv[:, : self._mixed]))
                gate_up = applied(layer["gate_up"], normed(hidden))
                hidden = applied(layer["down"], silu_and_mul(gate_up))

        return timed(graphed(everything)) / LAYERS / TURNS

    def products(self) -> dict[str, Product]:
        """Those that stand, and none."""
        found = standing(self.planes)
        found["nothing"] = lambda planes, x, out: None
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="8B", choices=SIZES)
    parser.add_argument("--type", default="Q4_K")
    parser.add_argument("--rows", default="8,16,32,64")
    options = parser.parse_args()
    layers = Layers(options.size, options.type)
    products = layers.products()
    for tokens in map(int, options.rows.split(",")):
        own = own_kernels(layers.planes[0], tokens)
        for name, product in {**products, **own}.items():
            print(f"{tokens:3} rows {layers.seconds(product, tokens) * 1e6:7.1f} us  {name}")


if __name__ == "__main__":
    main()
