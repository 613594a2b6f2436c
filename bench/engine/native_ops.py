"""CPU time of a prompt's native operations by kind, and of several built libraries in turns.

    PYTHONPATH=src:. python -m bench.engine.native_ops MODEL [--tokens N] [--threads N] \\
        [--level NAME] [--library PATH]...

Each operation is run by itself. CPU time, so that other work on the machine spoils little; of each
kind the best of several prompts. Libraries must be made of sources whose `native.h` is this one's:
the cache folder of `luce.engine.native.build` keeps those of earlier sources.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections import defaultdict
from pathlib import Path
from unittest import mock

from bench.engine.decode import Bench

from luce.engine.engine import Engine
from luce.engine.native import build
from luce.engine.native.library import NativeLibrary, Op, Step
from luce.engine.options import EngineOptions

KINDS = ("embed", "norm", "quantise", "product", "gated", "place", "attend", "choose")
run_all = NativeLibrary.run


class Stopwatch:
    """In place of `NativeLibrary.run`: operations one by one, their time by kind.

    Attributes:
        library: whose kernels run.
        spent: seconds of CPU of all threads.
    """

    def __init__(self, library: NativeLibrary) -> None:
        self.library = library
        self.spent: defaultdict[str, float] = defaultdict(float)

    def run(self, ops: ctypes.Array[Op], step: Step) -> None:
        for index in range(len(ops)):
            one = (Op * 1).from_buffer(ops, index * ctypes.sizeof(Op))
            began = time.process_time()
            run_all(self.library, one, step)
            kind = one[0].kind
            name = KINDS[kind] if kind < len(KINDS) else "other"
            self.spent[name] += time.process_time() - began


def best_of(bench: Bench, libraries: list[NativeLibrary], tokens: int, repeat: int) -> None:
    """Print a line for each library."""
    best: list[dict[str, float]] = [{} for _ in libraries]
    for _ in range(repeat):
        for library, found in zip(libraries, best, strict=True):
            watch = Stopwatch(library)
            with mock.patch.object(NativeLibrary, "run", lambda _, *given: watch.run(*given)):  # noqa: B023
                bench.prefill(tokens)
            for name, seconds in watch.spent.items():
                found[name] = min(seconds, found.get(name, seconds))
    for library, found in zip(libraries, best, strict=True):
        parts = "  ".join(f"{name} {1e3 * seconds:.0f}" for name, seconds in found.items())
        print(f"{library.level}: {parts}  sum {1e3 * sum(found.values()):.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--level", default=None, help="instruction set; the best by default")
    parser.add_argument("--library", type=Path, action="append", help="a built library")
    options = parser.parse_args()
    engine = Engine.load(
        EngineOptions(path=options.model, threads=options.threads, max_ctx=4096), lambda *_: None
    )
    engine.warm_up()
    libraries = []
    for path in options.library or [build.cached_library()]:
        library = NativeLibrary(ctypes.CDLL(str(path)), options.level)
        library.use_threads(options.threads)
        libraries.append(library)
    best_of(Bench(engine), libraries, options.tokens, options.repeat)


if __name__ == "__main__":
    main()
