"""The demo model held to schemas: scheduler and engine together, as in a worker."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from luce.engine.engine import Engine, PendingStep
from luce.engine.options import EngineOptions
from luce.kv.manager import KVManager
from luce.protocol.sampling import GrammarSpec, ReasoningBudget, SamplingParams, TokenLogprobs
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.outcome import Admitted
from luce.scheduler.plan import StepPlan
from luce.scheduler.scheduler import Scheduler
from luce.text.bundle import TextBundle

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = [
    "What is the capital of France?",
    "Invent a town in France.",
    "Who wrote Hamlet?",
    "Name a fruit and its price.",
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["old", "young"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    # A small model would write white space to the end of its room.
    "x-guidance": {"whitespace_flexible": False},
}
GRAMMAR = GrammarSpec("start: %json " + json.dumps(PERSON))


@dataclass
class Outcome:
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str = ""


class Worker:
    """One engine; every run has a fresh scheduler over a pool of the size it asks for."""

    def __init__(self, path: Path) -> None:
        self.text = TextBundle.load(path)
        options = EngineOptions(
            path=path, threads=1, max_concurrency=4, max_ctx=256, kv_pool_tokens=1024
        )
        self.engine = Engine.load(options, lambda *_: None)
        known = self.text.vocabulary()
        self.engine.use_vocabulary(known.tokens, known.control_ids, known.end_ids)
        self.num_preemptions = 0

    def params(self, **fields: object) -> SamplingParams:
        values = {"max_tokens": 60, "stop_token_ids": self.text.stop_token_ids, **fields}
        return SamplingParams(**values)  # type: ignore[arg-type]

    def run(
        self, asked: list[SamplingParams], num_blocks: int = 65, first: int = 0, depth: int = 0
    ) -> list[Outcome]:
        """Answer one question for each of these parameters, all at once, from `first` on."""
        kv = KVManager(num_blocks, self.engine.resolved.block_tokens, prefix_cache=False)
        ticks = itertools.count(1)
        scheduler = Scheduler(kv, SchedulerLimits(4, 256, 32), lambda: next(ticks), lambda: 0)
        outcomes: dict[str, Outcome] = {}
        for number, params in enumerate(asked, start=first):
            if params.grammar is not None:
                self.engine.check_grammar(params.grammar)
            prompt = self.text.tokenizer.encode_with_specials(CHAT.format(QUESTIONS[number]))
            answer = scheduler.submit(str(number), tuple(prompt), params)
            assert isinstance(answer, Admitted), answer
            outcomes[str(number)] = Outcome()
        under_way: deque[tuple[StepPlan, PendingStep]] = deque()
        while scheduler.has_work or under_way:
            plan = scheduler.plan() if scheduler.has_work else None
            if plan is not None:
                under_way.append((plan, self.engine.step(plan)))
                if len(under_way) <= depth:
                    continue
            plan, pending = under_way.popleft()
            for delta in scheduler.apply(plan, pending.result()).deltas:
                outcome = outcomes[delta.request_id]
                outcome.ids += delta.token_ids
                outcome.logprobs += delta.logprobs or ()
                outcome.finish = delta.finish or outcome.finish
        self.num_preemptions = scheduler.stats().preemptions
        return list(outcomes.values())

    def written(self, outcome: Outcome) -> str:
        return b"".join(map(self.text.tokenizer.token_bytes, outcome.ids)).decode()


@pytest.fixture(scope="module")
def worker(demo_model: Path) -> Iterator[Worker]:
    made = Worker(demo_model)
    yield made
    made.engine.close()


def check_person(text: str) -> None:
    found = json.loads(text)
    assert found.keys() == PERSON["properties"].keys()  # type: ignore[attr-defined]
    assert isinstance(found["name"], str)
    assert len(found["name"]) <= 12
    assert 0 <= found["age"] <= 150
    assert set(found["tags"]) <= {"old", "young"}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_forced_output_validates(worker: Worker, temperature: float) -> None:
    asked = [
        worker.params(grammar=GRAMMAR, temperature=temperature, seed=seed, max_tokens=90)
        for seed in range(3)
    ]
    outcomes = worker.run(asked)
    assert [outcome.finish for outcome in outcomes] == ["stop"] * 3
    for outcome in outcomes:
        check_person(worker.written(outcome))
    assert len({worker.written(outcome) for outcome in outcomes}) > 1


def test_a_grammar_that_is_complete_ends_a_request_without_stop_tokens(worker: Worker) -> None:
    (outcome,) = worker.run([worker.params(grammar=GRAMMAR, stop_token_ids=(), max_tokens=90)])
    assert outcome.finish == "stop"
    check_person(worker.written(outcome))


def test_neither_neighbours_nor_preemption_change_a_bound_text(worker: Worker) -> None:
    asked = [
        worker.params(grammar=GRAMMAR, temperature=1.2, seed=5, logprobs=2, max_tokens=40),
        worker.params(temperature=1.0, seed=6, max_tokens=24),
        worker.params(grammar=GRAMMAR, max_tokens=40),
        worker.params(min_tokens=40, max_tokens=40, logprobs=0),
    ]
    alone = [worker.run([params], first=number)[0] for number, params in enumerate(asked)]
    together = worker.run(asked)
    assert worker.num_preemptions == 0
    squeezed = []
    for depth in (0, 1):
        squeezed.append(worker.run(asked, num_blocks=12, depth=depth))
        assert worker.num_preemptions > 0
    for other in (alone, *squeezed):
        assert [each.ids for each in other] == [each.ids for each in together]
        assert [each.finish for each in other] == [each.finish for each in together]


def test_log_probabilities_are_those_of_what_was_chosen(worker: Worker) -> None:
    greedy, bound = worker.run(
        [
            worker.params(logprobs=3, max_tokens=12),
            worker.params(logprobs=3, max_tokens=12, grammar=GRAMMAR),
        ]
    )
    assert len(greedy.logprobs) == len(greedy.ids) > 0
    for token_id, report in zip(greedy.ids, greedy.logprobs, strict=True):
        assert report.top_ids[0] == token_id
        assert report.logprob == report.top_logprobs[0] <= 0
        assert len(report.top_ids) == 3
        assert report.top_logprobs[0] >= report.top_logprobs[1] >= report.top_logprobs[2]
    # The grammar forbade what the model liked best, and the report says so.
    assert any(
        report.top_ids[0] != token_id
        for token_id, report in zip(bound.ids, bound.logprobs, strict=True)
    )


def test_stop_tokens_wait_for_the_least_length(worker: Worker) -> None:
    question = worker.params(max_tokens=20)
    free = worker.run([question])[0]
    assert free.finish == "stop"
    longer = worker.run([replace(question, min_tokens=len(free.ids) + 5)])[0]
    assert longer.ids[: len(free.ids)] == free.ids
    assert len(longer.ids) >= len(free.ids) + 5


def test_open_reasoning_is_closed_and_the_answer_goes_on(worker: Worker) -> None:
    encode = worker.text.tokenizer.encode
    close = tuple(encode("</think>"))
    hint = tuple(encode("\nEnough of that.\n"))
    budget = ReasoningBudget(8, True, tuple(encode("<think>")), close, (*hint, *close))
    params = worker.params(max_tokens=40, logprobs=0)
    free, closed = (
        worker.run([each], first=1)[0] for each in (params, replace(params, reasoning=budget))
    )
    assert closed.ids[:8] == free.ids[:8]
    assert tuple(closed.ids[8 : 8 + len(hint) + len(close)]) == (*hint, *close)
    assert len(closed.ids) > 8 + len(hint) + len(close)
    assert len(closed.logprobs) == len(closed.ids)


def test_a_step_ahead_changes_no_text(worker: Worker) -> None:
    asked = [
        worker.params(grammar=GRAMMAR),
        worker.params(max_tokens=50),
        worker.params(grammar=GRAMMAR, temperature=0.8, seed=3, logprobs=2),
        # Ends with its grammar, which only the step behind finds out.
        worker.params(grammar=GrammarSpec('start: "Yes" | "No"'), stop_token_ids=()),
    ]
    expected = worker.run(asked)
    assert worker.run(asked, depth=1) == expected
    check_person(worker.written(expected[0]))
    assert worker.written(expected[3]) in ("Yes", "No")
