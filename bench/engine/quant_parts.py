"""What bounds the splitting kernel: its time with parts of the work left out.

    PYTHONPATH=src:. python -m bench.engine.quant_parts [--type Q4_K] [--rows 8,16]

Results of the variants are wrong, but for `whole`; x is staged before each. A variant about as slow
as the whole is what bounds it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from unittest import mock

import torch
from bench.engine.gpu import ceilings
from bench.engine.quant_products import SHAPES, Bench

from luce.engine.device import compile_kernel
from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda import quant_split
from luce.engine.ops.cuda.sources import PRIMITIVES, kernel_text
from luce.engine.quant_planes import QuantPlanes

VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "whole": (),
    "no loop": (("for (bool is_done = false; !is_done;)", "for (bool is_done = true; !is_done;)"),),
    "x not copied": (
        ("    vectors.fill(p, share.first_unit, share.units);\n", ""),
        ("                vectors.wait(x_unit);\n", ""),
    ),
    "no loads in the loop": (
        ("    unit.load(p, span, at.t);\n}\n\n// A unit's sums", "}\n\n// A unit's sums"),
    ),
    "a quarter of the products": (
        ("eight < 4; ++eight) {\n        u32 a", "eight < 1; ++eight) {\n        u32 a"),
    ),
}


def compiled_without(
    edits: Sequence[tuple[str, str]],
    name: str,
    files: Sequence[str],
    constants: Mapping[str, int],
    launch: KernelLaunch,
) -> DeviceKernel:
    """`ops.cuda.sources.compiled_kernel` of an edited text."""
    text = kernel_text([PRIMITIVES, *files], constants)
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return compile_kernel(text, name, launch)


def product(planes: QuantPlanes, x: torch.Tensor, out: torch.Tensor) -> None:
    """By the splitting kernel, as it serves."""
    quant_split.multiply(planes, x, out, None, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--type", default="Q4_K")
    parser.add_argument("--rows", default="8,16")
    options = parser.parse_args()
    bench = Bench(options.type, ceilings()[0])
    for tokens in map(int, options.rows.split(",")):
        for name, edits in VARIANTS.items():
            quant_split._compiled.cache_clear()
            edited = partial(compiled_without, edits)
            with mock.patch.object(quant_split, "compiled_kernel", edited):
                seconds = {shape: bench.measure_one(product, tokens, shape)[0] for shape in SHAPES}
            parts = " ".join(f"{each * 1e6:6.1f}" for each in seconds.values())
            print(f"{tokens:3} rows {sum(seconds.values()) * 1e6:7.1f} us ({parts})  {name}")


if __name__ == "__main__":
    main()
