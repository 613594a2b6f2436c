"""Tilings of the four-bit tensor-core kernel, each over the products of 5 layers of an 8B shape.

    PYTHONPATH=src:. python -m bench.engine.quant_mma [--type Q4_K]

Layers have weights of their own (109 MB each for Q4_K), replayed as one graph; errors of the norm
against float64, outputs poisoned before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from bench.engine.gpu import ceilings, graphed, timed

from luce.engine.ops.cuda.quant_mma import MmaTiling, multiply
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.quant_planes import QuantPlanes, repack
from luce.testing.quant_blocks import random_blocks

SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288))
LAYERS = 5
TILINGS = [
    MmaTiling(1, 1, 3), MmaTiling(1, 2, 2), MmaTiling(1, 4, 1), MmaTiling(2, 1, 2),
    MmaTiling(2, 2, 1), MmaTiling(2, 2, 2), MmaTiling(2, 4, 1), MmaTiling(4, 1, 2),
    MmaTiling(4, 2, 1), MmaTiling(4, 2, 2),
]  # fmt: skip
BEST = 6

Product = Callable[[QuantPlanes, torch.Tensor, torch.Tensor], None]
"""Of a matrix and x, into the last."""


class Bench:
    """Layers of one type, products for one number of rows of x."""

    def __init__(self, kind: str, tokens: int, layers: list[list[QuantPlanes]]) -> None:
        self.kind, self.tokens, self.layers = kind, tokens, layers
        generator = torch.Generator("cuda").manual_seed(tokens)
        self._inputs = {
            columns: torch.randn(tokens, columns, device="cuda", generator=generator).bfloat16()
            for _, columns in SHAPES
        }
        self._outputs = {
            rows: torch.empty(tokens, rows, device="cuda", dtype=torch.bfloat16)
            for rows, _ in SHAPES
        }

    def measure(self, product: Product) -> tuple[float, float]:
        """Seconds of a layer, and the error of its first product."""
        planes = self.layers[0][0]
        x, out = self._inputs[planes.columns], self._outputs[planes.rows].fill_(float("nan"))
        product(planes, x, out)
        wanted = x.double() @ decode(planes).double().T
        error = ((out.double() - wanted).norm() / wanted.norm()).item()

        def everything() -> None:
            for layer in self.layers:
                for each in layer:
                    product(each, self._inputs[each.columns], self._outputs[each.rows])

        return timed(graphed(everything)) / LAYERS, error


def products(layers: list[list[QuantPlanes]], tokens: int) -> dict[str, Product]:
    """Triton's kernels and every tiling that may serve so many rows."""
    linears = {id(planes): TritonQuantLinear([planes], None) for each in layers for planes in each}

    def by_triton(planes: QuantPlanes, x: torch.Tensor, out: torch.Tensor) -> None:
        linears[id(planes)]._run(x, out, None)

    def by(tiling: MmaTiling) -> Product:
        return lambda planes, x, out: multiply(planes, x, out, None, None, tiling)

    useful = [each for each in TILINGS if each.token_tiles == 1 or tokens > 4 * each.token_tiles]
    return {"triton": by_triton, **{str(each): by(each) for each in useful}}


def made(kind: str, rows: int, columns: int, seed: int) -> QuantPlanes:
    generator = torch.Generator("cuda").manual_seed(seed)
    return repack(kind, random_blocks(kind, rows, columns, generator), rows, columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--type", default="Q4_K")
    kind = parser.parse_args().type
    copy, _ = ceilings()
    layers = [[made(kind, *shape, seed) for shape in SHAPES] for seed in range(LAYERS)]
    moved = sum(planes.nbytes for planes in layers[0])
    for tokens in (1, 4, 8, 16, 32, 64):
        bench = Bench(kind, tokens, layers)
        found = {name: bench.measure(each) for name, each in products(layers, tokens).items()}
        for name, (seconds, error) in sorted(found.items(), key=lambda each: each[1])[:BEST]:
            print(
                f"{kind} {tokens:3} rows {seconds * 1e6:7.1f} us a layer "
                f"{moved / seconds / copy:6.1%}  error {error:.1e}  {name}",
                flush=True,
            )


if __name__ == "__main__":
    main()
