"""Who multiplies by quantised weights the fastest: every kernel, the products of an 8B shape.

    PYTHONPATH=src:. python -m bench.engine.quant_products [--types Q4_K,Q6_K,Q8_0]
        [--rows 1,8,16,32,64]

The four matrices of a layer one by one, each in copies of 400 MB together, replayed as one graph;
`bfloat16` is the vendor's product with decoded weights, `serving` what the engine uses now. Errors
are of the norm against float64, outputs poisoned before. Lines of one number of rows of x are in
order, the fastest first: that is what belongs into `quant_products.CHOICE`. Kernels of CUDA C++ are
there twice, started after the one before and early.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from bench.engine.gpu import ceilings, graphed, timed

from luce.engine.ops.cuda import quant_split, quant_whole
from luce.engine.ops.cuda.quant_products import QuantProducts
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.quant_planes import QuantPlanes, repack
from luce.testing.quant_blocks import random_blocks

SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (24576, 4096),
    "down": (4096, 12288),
}
COLD_BYTES = 400 << 20

Tiling = TypeVar("Tiling")
Product = Callable[[QuantPlanes, torch.Tensor, torch.Tensor], object]
"""Of a matrix and x, into the last."""


@dataclass(frozen=True)
class Found:
    """One kernel's figures: seconds of each matrix, and the largest error."""

    seconds: dict[str, float]
    error: float

    @property
    def layer(self) -> float:
        return sum(self.seconds.values())


class Bench:
    """Matrices of one type."""

    def __init__(self, kind: str, copy: float) -> None:
        self.kind, self._copy = kind, copy
        self.copies: dict[str, list[QuantPlanes]] = {}
        for name, shape in SHAPES.items():
            count = -(-COLD_BYTES // made(kind, *shape, 0).nbytes)
            self.copies[name] = [made(kind, *shape, seed) for seed in range(count)]
        self._expected: dict[tuple[str, int], torch.Tensor] = {}

    @property
    def planes(self) -> list[QuantPlanes]:
        return [each for copies in self.copies.values() for each in copies]

    def measure(self, product: Product, tokens: int) -> Found:
        measured = {name: self.measure_one(product, tokens, name) for name in SHAPES}
        seconds = {name: each for name, (each, _) in measured.items()}
        return Found(seconds, max(error for _, error in measured.values()))

    def measure_one(self, product: Product, tokens: int, name: str) -> tuple[float, float]:
        copies = self.copies[name]
        generator = torch.Generator("cuda").manual_seed(tokens)
        x = torch.randn(tokens, copies[0].columns, device="cuda", generator=generator).bfloat16()
        out = x.new_full((tokens, copies[0].rows), float("nan"))
        product(copies[0], x, out)
        wanted = self._expected.get((name, tokens))
        if wanted is None:
            wanted = (x.double() @ decode(copies[0]).double().T).float()
            self._expected[name, tokens] = wanted
        error = ((out.float() - wanted).norm() / wanted.norm()).item()

        def everything() -> None:
            for each in copies:
                product(each, x, out)

        return timed(graphed(everything)) / len(copies), error

    def say(self, tokens: int, name: str, found: Found) -> None:
        moved = sum(copies[0].nbytes for copies in self.copies.values())
        parts = " ".join(f"{seconds * 1e6:6.1f}" for seconds in found.seconds.values())
        print(
            f"{self.kind:6} {tokens:3} rows {found.layer * 1e6:7.1f} us a layer ({parts}) "
            f"{moved / found.layer / self._copy:6.1%}  error {found.error:.1e}  {name}",
            flush=True,
        )


def made(kind: str, rows: int, columns: int, seed: int) -> QuantPlanes:
    generator = torch.Generator("cuda").manual_seed(seed)
    return repack(kind, random_blocks(kind, rows, columns, generator), rows, columns)


def standing(parts: list[QuantPlanes]) -> dict[str, Product]:
    """What serves, Triton's kernels alone, and the vendor's product."""
    found = dict[str, Product]()
    for name, mma in (("serving", QuantProducts()), ("triton", None)):
        linears = {id(planes): TritonQuantLinear([planes], None, mma=mma) for planes in parts}
        found[name] = lambda planes, x, out, linears=linears: linears[id(planes)]._run(x, out, None)  # type: ignore[misc]
    weights = {id(planes): decode(planes).bfloat16() for planes in parts}
    found["bfloat16"] = lambda planes, x, out: torch.mm(x, weights[id(planes)].t(), out=out)
    return found


def own_kernels(planes: QuantPlanes, tokens: int) -> dict[str, Product]:
    """Those of CUDA C++ that take a matrix and so many rows of x, each late and early."""
    found = dict[str, Product]()
    for way, is_early in (("late", False), ("early", True)):
        if tokens <= quant_split.MOST_ROWS and quant_split.refusal(planes) is None:
            split = replace(smallest(quant_split.SPLIT_TILINGS, tokens), is_early=is_early)
            found[f"split {way}"] = partial(
                quant_split.multiply, bias=None, residual=None, tiling=split
            )
        if tokens <= quant_whole.MOST_ROWS and quant_whole.refusal(planes) is None:
            whole = replace(smallest(quant_whole.WHOLE_TILINGS, tokens), is_early=is_early)
            found[f"whole {way}"] = partial(
                quant_whole.multiply, bias=None, residual=None, tiling=whole
            )
    return found


def smallest(tilings: dict[int, Tiling], tokens: int) -> Tiling:
    """Of those that take so many rows of x."""
    return next(each for most, each in tilings.items() if tokens <= most)


def run(bench: Bench, rows: Iterable[int]) -> None:
    """Print every product of each number of rows of x, the fastest first."""
    there = standing(bench.planes)
    for tokens in rows:
        products = {**there, **own_kernels(bench.planes[0], tokens)}
        found = {name: bench.measure(each, tokens) for name, each in products.items()}
        for name, figures in sorted(found.items(), key=lambda each: each[1].layer):
            bench.say(tokens, name, figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", default="Q4_K,Q6_K,Q8_0")
    parser.add_argument("--rows", default="1,8,16,32,64")
    options = parser.parse_args()
    copy, product = ceilings()
    print(f"copy {copy / 1e12:.2f} TB/s, bfloat16 product {product / 1e12:.0f} TFLOP/s")
    rows = [int(each) for each in options.rows.split(",")]
    for kind in options.types.split(","):
        run(Bench(kind, copy), rows)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
