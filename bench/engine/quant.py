"""Quantised products on a GPU: time, share of the copy bandwidth, error, type by type.

    python bench/engine/quant.py [--types Q4_K,Q8_0] [--rows 1,4,16] [--sweep vector|tile]

Weights are cold: calls rotate among copies that are several times the L2 cache, replayed as one
graph. The bandwidth is that of a large copy in the same run, bytes read plus written. The share is
of the bytes of the planes alone. Kernels are compiled by several processes first.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.ops.triton.quant_tilings import (
    DEFAULT_TILINGS,
    QuantTilings,
    TileTiling,
    VectorTiling,
)
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.testing.quant_blocks import random_blocks

# Qwen3 8B: name → rows, columns, how many a layer has.
LAYER = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (24576, 4096),
    "down": (4096, 12288),
}
HEAD = {"head": (151936, 4096)}
COLD_BYTES = 400 << 20
WARMERS = 14


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    type: str
    tokens: int
    label: str
    tilings: QuantTilings


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def timed_graph(calls: Sequence[Callable[[], object]], replays: int = 5) -> float:
    """Median seconds of one call when all are replayed as one graph."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times: list[float] = []
    for _ in range(replays):
        begin, end = _event(), _event()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times) / len(calls)


def copy_bandwidth() -> float:
    source = torch.empty(1 << 30, dtype=torch.int32, device="cuda").random_()
    target = torch.empty_like(source)
    fastest = 0.0
    for _ in range(5):
        begin, end = _event(), _event()
        begin.record()
        for _ in range(3):
            target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        fastest = max(fastest, 6 * source.nbytes / begin.elapsed_time(end) * 1e3)
    return fastest


def matmul_rate() -> float:
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    right = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 2 * 8192**3 / timed_graph([lambda: left @ right] * 4)


def copied(planes: QuantPlanes) -> QuantPlanes:
    tensors = {
        field.name: value.clone()
        for field in dataclasses.fields(planes)
        if isinstance(value := getattr(planes, field.name), torch.Tensor)
    }
    return dataclasses.replace(planes, **tensors)  # type: ignore[arg-type]


class Weights:
    """Planes by type and shape, made once."""

    def __init__(self, cold: bool) -> None:
        self._cold = cold
        self._made: dict[tuple[str, str], list[QuantPlanes]] = {}
        self._generator = torch.Generator(device="cuda").manual_seed(1)

    def of(self, type_name: str, shape: str) -> list[QuantPlanes]:
        key = (type_name, shape)
        if key not in self._made:
            rows, columns = (LAYER | HEAD)[shape]
            raw = random_blocks(type_name, rows, columns, self._generator)
            planes = repack(type_name, raw, rows, columns)
            count = max(2, COLD_BYTES // planes.nbytes) if self._cold else 1
            self._made[key] = [planes, *(copied(planes) for _ in range(count - 1))]
        return self._made[key]

    def forget(self) -> None:
        self._made.clear()


def error(planes: QuantPlanes, linear: TritonQuantLinear, x: torch.Tensor) -> float:
    rows = min(planes.rows, 2048)
    part = dataclasses.replace(
        planes,
        rows=rows,
        codes=planes.codes[:rows],
        high=None if planes.high is None else planes.high[:rows],
        scales=planes.scales[:rows],
        blocks=None if planes.blocks is None else planes.blocks[:rows],
    )
    expected = x.double() @ decode(part).double().T
    found = linear(x)[:, :rows].double()
    return float((found - expected).norm() / expected.norm())


def run_case(
    case: Case, weights: Weights, shapes: dict[str, tuple[int, int]]
) -> tuple[dict[str, float], float]:
    """Seconds of each shape and the largest error."""
    seconds: dict[str, float] = {}
    worst = 0.0
    for name, (_, columns) in shapes.items():
        planes = weights.of(case.type, name)
        x = torch.randn(case.tokens, columns, device="cuda", dtype=torch.bfloat16)
        linears = [TritonQuantLinear([part], None, case.tilings) for part in planes]
        worst = max(worst, error(planes[0], linears[0], x))
        calls = [lambda linear=linear, x=x: linear(x) for linear in linears]
        seconds[name] = timed_graph(calls)
    return seconds, worst


def vector_sweep() -> Iterator[tuple[str, QuantTilings]]:
    for start, *tiling in (
        (2, 8, 128, 4), (2, 4, 64, 2), (2, 8, 64, 2), (2, 16, 64, 2), (2, 8, 128, 2),
        (1, 8, 64, 2), (1, 4, 128, 4), (1, 8, 128, 2),
    ):  # fmt: skip
        tilings = dataclasses.replace(
            DEFAULT_TILINGS, vector={8: VectorTiling(*tiling)}, quantise_from=start
        )
        yield f"{start} {tiling}", tilings


def tile_sweep() -> Iterator[tuple[str, QuantTilings]]:
    for least, *tiling in (
        (16, 64, 4, 4, 3, 264), (16, 64, 4, 4, 3, 528), (16, 64, 4, 4, 3, 800),
        (16, 64, 4, 4, 2, 800), (16, 64, 4, 8, 3, 528), (64, 64, 4, 4, 2, 800),
        (64, 64, 4, 8, 3, 264), (64, 128, 4, 8, 2, 400),
    ):  # fmt: skip
        tilings = dataclasses.replace(
            DEFAULT_TILINGS,
            tile={128: TileTiling(*tiling)},
            vector={0: DEFAULT_TILINGS.vector[4]},
            tile_tokens=(least, 128),
        )
        yield f"{least} {tiling}", tilings


def cases(options: argparse.Namespace) -> list[Case]:
    sweeps = {"vector": vector_sweep, "tile": tile_sweep}
    found = []
    for type_name in options.types.split(","):
        for tokens in map(int, options.rows.split(",")):
            if options.sweep:
                labels = list(sweeps[options.sweep]())
            else:
                labels = [("default", DEFAULT_TILINGS)]
            found += [Case(type_name, tokens, label, tilings) for label, tilings in labels]
    return found


def warm(todo: list[Case], shapes: dict[str, tuple[int, int]]) -> None:
    """Compile by running once."""
    weights = Weights(cold=False)
    for case in todo:
        for name, (_, columns) in shapes.items():
            x = torch.randn(case.tokens, columns, device="cuda", dtype=torch.bfloat16)
            try:
                TritonQuantLinear(weights.of(case.type, name), None, case.tilings)(x)
            except Exception as problem:
                print(case.type, case.tokens, case.label, type(problem).__name__, str(problem)[:90])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--types", default=",".join(QUANT_FORMATS))
    parser.add_argument("--rows", default="1,4,8,16,64,512")
    parser.add_argument("--sweep", choices=("vector", "tile"))
    parser.add_argument("--shapes", choices=("layer", "all"), default="layer")
    parser.add_argument("--warm", type=int, help="compile only, this share")
    options = parser.parse_args()
    shapes = LAYER if options.shapes == "layer" else LAYER | HEAD
    todo = cases(options)
    if options.warm is not None:
        warm(todo[options.warm :: WARMERS], shapes)
        return
    began = time.perf_counter()
    command = [sys.executable, *sys.argv]
    running = [
        subprocess.Popen([*command, "--warm", str(share)], env=os.environ)
        for share in range(min(WARMERS, len(todo)))
    ]
    for process in running:
        process.wait()
    print(f"compiled in {time.perf_counter() - began:.0f} s")
    bandwidth, rate = copy_bandwidth(), matmul_rate()
    print(f"copy {bandwidth / 1e12:.2f} TB/s, bf16 product {rate / 1e12:.0f} TFLOP/s")
    print("type rows tiling | us:", *shapes, "| share of bandwidth:", *shapes, "all | error")
    weights = Weights(cold=True)
    last = ""
    for case in todo:
        if case.type != last:
            weights.forget()
            last = case.type
        try:
            seconds, worst = run_case(case, weights, shapes)
        except Exception as problem:
            print(case.type, case.tokens, case.label, type(problem).__name__, str(problem)[:100])
            continue
        floors = {n: weights.of(case.type, n)[0].nbytes / bandwidth for n in shapes}
        shares = [floors[n] / seconds[n] for n in shapes]
        whole = sum(floors.values()) / sum(seconds.values())
        print(
            f"{case.type:7} {case.tokens:4} {case.label} |",
            *(f"{seconds[n] * 1e6:.1f}" for n in shapes),
            "|",
            *(f"{100 * share:.0f}" for share in shares),
            f"{100 * whole:.0f} | {worst:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
