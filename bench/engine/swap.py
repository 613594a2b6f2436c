"""What it costs to evict a model and to bring it back, at every level.

    python -m bench.engine.swap [MODEL.gguf]          two of them take turns on the CPU
    PYTHONPATH=src:. python -m bench.engine.swap --gpu two 8B models of random weights take turns

CPU: times of each level, a swap A-B-A from host memory, how much of a 2,000-token conversation is
computed again behind it. GPU: see `bench.engine.swap_gpu`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from luce.cli.demo import find_demo_model
from luce.observability.memory import resident_bytes
from luce.protocol.messages import LoadSpec
from luce.protocol.sampling import SamplingParams
from luce.scheduler.scheduler import Scheduler
from luce.worker.load import load_model
from luce.worker.ports import KeptMemory, StepEngine

LEVELS: tuple[Literal["warm", "host", "cold"], ...] = ("warm", "host", "cold")
CONVERSATION = 2000
ROUNDS = 5
FRESH_LOAD_S = 1.9
"""llama.cpp from the page cache to its first answer, this model, two cores."""
_MIB = 1 << 20


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Served:
    """A model with its scheduler, without a process around it."""

    def __init__(self, engine: StepEngine, scheduler: Scheduler) -> None:
        self.engine, self.scheduler = engine, scheduler

    def answer(self, prompt: tuple[int, ...], count: int = 8) -> tuple[list[int], int]:
        """Tokens, and how many of the prompt did not have to be computed."""
        admitted = self.scheduler.submit("r", prompt, SamplingParams(max_tokens=count))
        tokens: list[int] = []
        while self.scheduler.has_work:
            plan = self.scheduler.plan()
            assert plan is not None
            outcome = self.scheduler.apply(plan, self.engine.step(plan).result())
            tokens += [token for delta in outcome.deltas for token in delta.token_ids]
        return tokens, admitted.cached_tokens  # type: ignore[union-attr]

    def evict(self, level: Literal["warm", "host", "cold"]) -> KeptMemory:
        """Give memory back, prefixes to the host."""
        return self.engine.evict(level, self._save)

    def reinstate(self) -> None:
        """Serve again."""
        self.engine.reinstate()

    def _save(self) -> None:
        self.scheduler.empty_cache()


class Resident(Served):
    """One of a file, on the CPU."""

    def __init__(self, path: Path) -> None:
        spec = LoadSpec(name="m", path=str(path), max_ctx=4096, max_concurrency=2)
        loaded = load_model(spec, lambda *_: None)
        super().__init__(loaded.engine, loaded.scheduler)
        self.vocab_size = loaded.ready.vocab_size


def conversation(vocab_size: int, first: int, length: int = CONVERSATION) -> tuple[int, ...]:
    """Tokens without repeats nearby."""
    return tuple((first + 31 * index) % vocab_size for index in range(length))


def cpu(path: Path) -> None:
    """Two models of one file."""
    one, other = Resident(path), Resident(path)
    prompt = conversation(one.vocab_size, 5)
    fresh_s = seconds(lambda: one.answer(prompt, 1))
    text = one.answer(prompt)[0]
    print(f"{CONVERSATION} tokens computed: {fresh_s:.2f} s")
    for level in LEVELS:
        out, back = [], []
        for _ in range(ROUNDS):
            out.append(seconds(partial(one.evict, level)))
            held = resident_bytes() or 0
            back.append(seconds(one.reinstate))
            found = one.answer(prompt)
            assert found[0] == text, "another text behind a swap"
        share = 1 - found[1] / CONVERSATION
        print(
            f"{level:5} evict {_ms(out)}, reinstate {_ms(back)}, "
            f"{share:.1%} of the conversation computed again, {held // _MIB} MiB held"
        )
    other.answer(prompt)
    other.evict("host")
    swaps = [seconds(lambda: _there_and_back(one, other)) for _ in range(ROUNDS)]
    best, median = min(swaps), statistics.median(swaps)
    print(
        f"A-B-A host: best {best:.3f} s, median {median:.3f} s; "
        f"{best / FRESH_LOAD_S:.3f} of a fresh load"
    )
    continued = seconds(lambda: one.answer(prompt, 1))
    print(f"the conversation's next token behind it: {continued:.3f} s, {continued / fresh_s:.1%}")


def _there_and_back(one: Resident, other: Resident) -> None:
    one.evict("host")
    other.reinstate()
    other.evict("host")
    one.reinstate()


def _ms(times: list[float]) -> str:
    return f"{min(times) * 1e3:.0f} ms (median {statistics.median(times) * 1e3:.0f})"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--gpu", action="store_true", help="two models take turns on a GPU")
    parser.add_argument("--size", default="8B", help="of the GPU's models: tiny, 0.6B, 8B, 32B")
    parser.add_argument("--turns", type=int, default=10, help="switches on the GPU")
    parser.add_argument("--folder", type=Path, help="where the GPU's model of files is written")
    options = parser.parse_args()
    if options.gpu:
        # Kernels are needed only there.
        from bench.engine.swap_gpu import Setting, gpu

        gpu(Setting(size=options.size, turns=options.turns, folder=options.folder))
    else:
        cpu(options.model or find_demo_model())


if __name__ == "__main__":
    main()
