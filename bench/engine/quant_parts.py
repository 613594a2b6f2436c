"""What bounds the streaming kernel: its time with parts of the work left out.

    PYTHONPATH=src:. python -m bench.engine.quant_parts [--type Q4_K] [--rows 16,64]

Each number of rows by the tiling that serves it; results of the variants are wrong, but for
`whole`. A variant about as slow as the whole is what bounds it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from unittest import mock

from bench.engine.gpu import ceilings
from bench.engine.quant_products import SHAPES, Bench, by_stream

from luce.engine.device import compile_kernel
from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda import quant_stream
from luce.engine.ops.cuda.sources import PRIMITIVES, kernel_text

_PRODUCTS = (
    "add_products(p, stage, arranged_of(ring, turn), one, at, row_block * ROWS, span, total);",
    "add_offsets(stage, sums_of(ring, turn), one, at, total);",
    "prepare(next, at, ring, turn + 1);",
)
VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "whole": (),
    "copies alone": tuple((each, ";") for each in _PRODUCTS),
    "products alone": (
        ("            vectors.copy(p, free_stage);", ""),
        ("            matrix.copy(p, free_stage);", ""),
    ),
    "x not prepared": ((_PRODUCTS[2], ";"),),
    "nothing gathered": (("if (gather(p, shares, row_block, flag, total))", ""),),
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


def time_of(bench: Bench, tokens: int, shape: str) -> float:
    """Seconds of one matrix's product."""
    tilings = quant_stream.tilings_for(SHAPES[shape][0])
    tiling = next(each for most, each in tilings.items() if tokens <= most)
    return bench.measure_one(by_stream(tiling), tokens, shape)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--type", default="Q4_K")
    parser.add_argument("--rows", default="16,64")
    options = parser.parse_args()
    bench = Bench(options.type, ceilings()[0])
    for tokens in map(int, options.rows.split(",")):
        for name, edits in VARIANTS.items():
            quant_stream._compiled.cache_clear()
            edited = partial(compiled_without, edits)
            with mock.patch.object(quant_stream, "compiled_kernel", edited):
                seconds = {shape: time_of(bench, tokens, shape) for shape in SHAPES}
            parts = " ".join(f"{each * 1e6:6.1f}" for each in seconds.values())
            print(f"{tokens:3} rows {sum(seconds.values()) * 1e6:7.1f} us ({parts})  {name}")


if __name__ == "__main__":
    main()
