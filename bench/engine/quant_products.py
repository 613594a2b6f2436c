"""Who multiplies by quantised weights the fastest: every kernel, the products of an 8B shape.

    PYTHONPATH=src:. python -m bench.engine.quant_products [--types Q4_K,Q6_K,Q8_0]
        [--rows 1,8,16,32,64] [--stages 6] [--early] [--all]

The four matrices of a layer one by one, each in copies of 400 MB together, replayed as one graph;
`bfloat16` is the vendor's product with decoded weights, `serving` what the engine uses now. Errors
are of the norm against float64, outputs poisoned before. The last lines are the choice to make: for
a matrix, of the tilings that make the same bits for all numbers of rows, the fastest for each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from bench.engine.gpu import ceilings, graphed, timed

from luce.engine.ops.cuda import quant_split, quant_stream
from luce.engine.ops.cuda.quant_products import QuantProducts
from luce.engine.ops.cuda.quant_split import SplitTiling
from luce.engine.ops.cuda.quant_stream import StreamTiling
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
BEST = 6
COMPILERS = 12

# Row warps, row tiles, token warps, blocks; what is the same but for the last are the same bits.
CUTS = (
    (8, 2, 1, 1), (16, 1, 1, 1), (8, 2, 2, 1), (4, 4, 1, 1), (16, 2, 1, 1),
    (8, 1, 1, 2), (4, 2, 1, 2), (4, 2, 2, 2), (8, 1, 1, 1), (4, 2, 2, 1),
    (4, 1, 2, 1), (4, 1, 1, 3), (4, 1, 1, 4),
)  # fmt: skip

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
    """What there is without the streaming kernel."""
    found = dict[str, Product]()
    for name, mma in (("serving", QuantProducts()), ("triton", None)):
        linears = {id(planes): TritonQuantLinear([planes], None, mma=mma) for planes in parts}
        found[name] = lambda planes, x, out, linears=linears: linears[id(planes)]._run(x, out, None)  # type: ignore[misc]
    weights = {id(planes): decode(planes).bfloat16() for planes in parts}
    found["bfloat16"] = lambda planes, x, out: torch.mm(x, weights[id(planes)].t(), out=out)
    return found


def by_split(tiling: SplitTiling) -> Product:
    return lambda planes, x, out: quant_split.multiply(planes, x, out, None, None, tiling)


def by_stream(tiling: StreamTiling) -> Product:
    return lambda planes, x, out: quant_stream.multiply(planes, x, out, None, None, tiling)


def stream_tilings(
    tokens: int, stages: Iterable[int], early_too: Sequence[bool]
) -> list[StreamTiling]:
    """Every cut for so many rows of x."""
    tiles = max(1, -(-tokens // 8))
    found = []
    for row_warps, row_tiles, token_warps, blocks in CUTS:
        if tiles % token_warps:
            continue
        can_be_together = tiles in (1, 2, 4, 8) and row_warps % 4 == 0 and token_warps == 1
        found += [
            StreamTiling(
                row_warps, row_tiles, tiles // token_warps, token_warps, blocks, depth,
                is_early, is_together,
            )
            for depth in stages
            for is_early in early_too
            for is_together in ((False, True) if can_be_together else (False,))
        ]  # fmt: skip
    return found


def compile_all(kind: str, tilings: set[StreamTiling]) -> set[StreamTiling]:
    """Compile side by side; returns those that there is room for."""
    planes, ready = made(kind, 32, 1024, 0), set()

    def one(tiling: StreamTiling) -> None:
        x = torch.zeros(1, 1024, device="cuda", dtype=torch.bfloat16)
        try:
            by_stream(tiling)(planes, x, x.new_empty(1, 32))
            ready.add(tiling)
        except (ValueError, RuntimeError) as error:
            print(f"{kind} {tiling}: {str(error)[:120]}")

    def begin() -> None:
        # Gives the thread the device's context, which loading a kernel asks for.
        torch.zeros(1, device="cuda")

    # One first: what all share is made once.
    first = sorted(tilings, key=str)
    one(first[0])
    with ThreadPoolExecutor(COMPILERS, initializer=begin) as pool:
        list(pool.map(one, first[1:]))
    torch.cuda.synchronize()
    return ready


Family = dict[tuple[str, tuple[int, int, bool]], dict[int, tuple[float, str]]]
"""By matrix, and by what the bits depend on: the best for each number of rows of x."""


def run(bench: Bench, wanted: dict[int, list[StreamTiling]], say_all: bool) -> None:
    """Print the best of each number of rows of x, then the choice.

    Args:
        bench: of a type.
        wanted: tilings of the streaming kernel for each number of rows.
        say_all: not only the best.
    """
    rows = list(wanted)
    ready = compile_all(bench.kind, {each for tilings in wanted.values() for each in tilings})
    there, families = standing(bench.planes), Family()
    for tokens in rows:
        found = {name: bench.measure(each, tokens) for name, each in there.items()}
        if tokens <= quant_split.MOST_ROWS and quant_split.refusal(bench.planes[0]) is None:
            for is_early in (False, True):
                split = SplitTiling(-(-tokens // 8), is_early)
                found[str(split)] = bench.measure(by_split(split), tokens)
        for each in ready.intersection(wanted[tokens]):
            found[str(each)] = figures = bench.measure(by_stream(each), tokens)
            for name, seconds in figures.seconds.items():
                best = families.setdefault((name, each.bits_key), {})
                best[tokens] = min(best.get(tokens, (1.0, "")), (seconds, str(each)))
        ordered = sorted(found.items(), key=lambda each: each[1].layer)
        for index, (name, figures) in enumerate(ordered):
            if say_all or index < BEST or name in there:
                bench.say(tokens, name, figures)
    say_choice(bench.kind, rows, families)


def say_choice(kind: str, rows: list[int], families: Family) -> None:
    """Print for each matrix the families that serve all numbers of rows, the fastest first."""
    whole = {family: best for family, best in families.items() if set(best) == set(rows)}
    for matrix in SHAPES:
        mine = {family: best for family, best in whole.items() if family[0] == matrix}
        for (_, (block_rows, blocks, is_together)), best in sorted(
            mine.items(), key=lambda each: sum(seconds for seconds, _ in each[1].values())
        )[:2]:
            way = "together" if is_together else "alone"
            print(f"{kind} {matrix}: {block_rows} rows a block, {blocks} blocks, warps {way}")
            for tokens, (seconds, name) in best.items():
                print(f"  {tokens:3} rows {seconds * 1e6:7.1f} us  {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", default="Q4_K,Q6_K,Q8_0")
    parser.add_argument("--rows", default="1,8,16,32,64")
    parser.add_argument("--stages", default="6", help="of the ring, at most; several by commas")
    parser.add_argument("--early", action="store_true", help="also kernels that start early")
    parser.add_argument("--all", action="store_true", help="not only the fastest")
    options = parser.parse_args()
    copy, product = ceilings()
    print(f"copy {copy / 1e12:.2f} TB/s, bfloat16 product {product / 1e12:.0f} TFLOP/s")
    stages = [int(each) for each in options.stages.split(",")]
    early_too = [False, True] if options.early else [False]
    wanted = {
        tokens: stream_tilings(tokens, stages, early_too)
        for tokens in map(int, options.rows.split(","))
    }
    for kind in options.types.split(","):
        run(Bench(kind, copy), wanted, options.all)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
