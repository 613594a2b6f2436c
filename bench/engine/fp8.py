"""FP8 products of one 8B layer at every number of rows, for several cuts; table last.

    PYTHONPATH=src:. python -m bench.engine.fp8 [--rows 1,2,4,8,16,64,128,512] [--kinds block,row]

Shares are of the bytes of numbers and scales over the copy bandwidth, from 256 rows on of the
product rate. Layers have weights of their own, so that nothing is read from the processor's cache.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import torch
from bench.engine.gpu import ceilings, graphed, timed
from bench.engine.shapes import Fp8Parameters

from luce.engine.fp8_weights import StoredPart
from luce.engine.ops.ref.fp8_matmul import decode
from luce.engine.ops.triton.fp8_linear import (
    DEFAULT_TILINGS,
    Fp8Tilings,
    TileTiling,
    TritonFp8Linear,
    VectorTiling,
)

# qkv, output, gate and up, down of an 8B model: [out, in].
SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288))
LAYERS = 6
_PRODUCT_ROWS = 256
_TOLERANCE = 5e-3


def cuts(rows: int) -> Iterator[tuple[str, Fp8Tilings]]:
    """What may serve so many rows of x: the cut that does, and others."""
    yield "default", DEFAULT_TILINGS
    if rows <= 4:
        for count, blocks, warps in ((4, 8, 4), (8, 8, 4), (2, 8, 4), (4, 16, 8), (4, 4, 2)):
            vector = {rows: VectorTiling(count, blocks, 2, warps)}
            yield f"vector {count} {blocks} {warps}", Fp8Tilings(vector, DEFAULT_TILINGS.tile)
    if 1 < rows <= 128:
        nothing = {0: VectorTiling(4, 8, 0, 4)}
        for count, warps, stages, programs in (
            *((64, 4, 4, 132), (64, 4, 4, 264), (64, 4, 4, 528), (64, 4, 3, 264)),
            *((128, 4, 4, 264), (128, 8, 4, 132), (128, 8, 3, 264)),
        ):
            tile = {128: TileTiling(count, warps, stages, programs)}
            yield f"tile {count} {warps} {stages} {programs}", Fp8Tilings(nothing, tile)
    if rows > 1:
        yield "vendor", Fp8Tilings({0: VectorTiling(4, 8, 0, 4)}, {0: TileTiling(64, 4, 4, 264)})


def layers_of(kind: str) -> list[list[list[StoredPart]]]:
    """The four products' matrices of each layer."""
    parameters = Fp8Parameters(torch.device("cuda"), is_block=kind == "block")
    return [[parameters.fp8(("x_proj", shape)) or [] for shape in SHAPES] for _ in range(LAYERS)]


def error(linear: TritonFp8Linear, parts: list[StoredPart], x: torch.Tensor) -> float:
    """Against float64, of the norm."""
    expected = x.double() @ torch.cat([decode(part) for part in parts]).double().T
    return float((linear(x).double() - expected).norm() / expected.norm())


def measure(
    layers: list[list[list[StoredPart]]], rows: int, tilings: Fp8Tilings
) -> tuple[float, int]:
    """Seconds of a layer, and its bytes.

    Raises:
        ArithmeticError: a product is wrong.
    """
    linears = [[TritonFp8Linear(parts, None, tilings) for parts in layer] for layer in layers]
    x = [torch.randn(rows, size, device="cuda").bfloat16() for _, size in SHAPES]
    # The smallest one: the others' float64 would take their time.
    found = error(linears[0][1], layers[0][1], x[1])
    if not found < _TOLERANCE:
        raise ArithmeticError(f"off by {found:.1e}")

    def run() -> None:
        for layer in linears:
            for linear, value in zip(layer, x, strict=True):
                linear(value)

    return timed(graphed(run), 12) / LAYERS, sum(linear.nbytes for linear in linears[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,2,4,8,16,64,128,512,2048")
    parser.add_argument("--kinds", default="block,row")
    options = parser.parse_args()
    copy, product = ceilings()
    lines: list[str] = []
    for kind in options.kinds.split(","):
        layers = layers_of(kind)
        for rows in map(int, options.rows.split(",")):
            flops = 2 * rows * sum(out * size for out, size in SHAPES)
            for name, tilings in cuts(rows):
                seconds, nbytes = measure(layers, rows, tilings)
                is_product = rows >= _PRODUCT_ROWS
                floor = flops / product if is_product else nbytes / copy
                share = f"{seconds * 1e6:8.1f} us a layer {floor / seconds:6.1%}"
                lines.append(f"{kind:<6} {rows:>5} rows  {name:<22} {share}")
                print(lines[-1], flush=True)
    print(f"\nceilings: copy {copy / 1e12:.2f} TB/s, product {product / 1e12:.0f} TFLOP/s")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
