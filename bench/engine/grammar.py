"""What grammars cost: decode rates of 8 streams with and without one, in turns, by medians.

    python -m bench.engine.grammar [--model MODEL] [--threads N] [--streams N]

The grammar is JSON of a schema whose answer never ends, so that both kinds of streams decode
alike. Rounds with and without alternate, so that other work on the machine falls on both; the
cost is the median over the pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from luce.cli.demo import find_demo_model
from luce.engine.engine import Engine
from luce.engine.options import EngineOptions
from luce.kv.spec import blocks_for
from luce.protocol.sampling import GrammarSpec, SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.text.bundle import TextBundle

CONTEXT, STEPS = 64, 24
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "born": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["old", "young", "rich"]}},
        },
        "required": ["name", "born", "tags"],
        "additionalProperties": False,
    },
    "minItems": 1000,
}
GRAMMAR = GrammarSpec("start: %json " + json.dumps(SCHEMA))
MOST_COST = 0.1
"""The share of the decode rate that a grammar may take."""


@dataclass
class Streams:
    """The same decode steps again and again, on one engine."""

    engine: Engine
    count: int
    step: int = 0

    def round(self, grammar: GrammarSpec | None) -> float:
        """Median seconds of a decode step of all streams."""
        sampling = SamplingParams(max_tokens=1 << 20, grammar=grammar)
        for row in range(self.count):
            prompt = tuple((7919 * row + 31 * place) % 40_000 + 100 for place in range(CONTEXT))
            item = ScheduledSequence(row, 0, prompt, self._table(row, CONTEXT), sample=True)
            self._run((RowStart(row, sampling, row, prompt, CONTEXT),), (item,))
        seconds = [
            self._run((), tuple(self._decode(row, index) for row in range(self.count)))
            for index in range(1, STEPS)
        ]
        return statistics.median(seconds)

    def _decode(self, row: int, index: int) -> ScheduledSequence:
        start = CONTEXT + index - 1
        table = self._table(row, start + 1)
        return ScheduledSequence(row, start, (), table, sample=True, output_index=index)

    def _run(self, starts: tuple[RowStart, ...], items: tuple[ScheduledSequence, ...]) -> float:
        self.step += 1
        began = time.perf_counter()
        self.engine.step(StepPlan(self.step, starts, items)).result()
        return time.perf_counter() - began

    def _table(self, row: int, tokens: int) -> tuple[int, ...]:
        block_tokens = self.engine.resolved.block_tokens
        first = 1 + row * blocks_for(CONTEXT + STEPS, block_tokens)
        return tuple(range(first, first + blocks_for(tokens, block_tokens)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    path = options.model or find_demo_model()
    engine = Engine.load(
        EngineOptions(
            path=path, threads=options.threads, max_concurrency=options.streams, max_ctx=512
        ),
        lambda *_: None,
    )
    engine.warm_up()
    known = TextBundle.load(path).vocabulary()
    began = time.perf_counter()
    engine.use_vocabulary(known.tokens, known.control_ids, known.end_ids)
    learned = time.perf_counter()
    engine.check_grammar(GRAMMAR)
    compiled = time.perf_counter()
    print(
        f"vocabulary of {len(known.tokens)} learned in {learned - began:.3f} s, schema compiled in "
        f"{1e3 * (compiled - learned):.1f} ms"
    )
    streams = Streams(engine, options.streams)
    streams.round(GRAMMAR)
    pairs = [(streams.round(None), streams.round(GRAMMAR)) for _ in range(options.rounds)]
    for name, place in (("without", 0), ("with", 1)):
        rates = [options.streams / pair[place] for pair in pairs]
        print(f"{name:<8} {statistics.median(rates):8.1f} tok/s (median), {max(rates):.1f} (best)")
    cost = statistics.median(1 - free / bound for free, bound in pairs)
    print(f"a grammar costs {cost:.1%} of the decode rate (at most {MOST_COST:.0%} wanted)")
    engine.close()


if __name__ == "__main__":
    main()
