"""Grammars, least lengths, forced tokens and log probabilities on the device path.

In the interpreter: the same ids and reports as the host path, eagerly and behind a replayed step.
The model is a table, since its kernels have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from luce.engine.device_executor import DeviceExecutor, _CapturedStep
from luce.engine.device_inputs import StepShape, step_numbers
from luce.engine.extras import RowExtras, SampledTokens, StepExtras
from luce.engine.hidden_taps import StepTap
from luce.engine.inputs import InputBatch, build_inputs
from luce.engine.ops.triton.sampling import StepLogits
from luce.engine.options import EngineInfo
from luce.engine.rows import RowState
from luce.engine.runner import Runner
from luce.engine.sampling.sampler import Sampler
from luce.engine.step_ring import StepRing
from luce.kv.spec import NULL_BLOCK
from luce.protocol.sampling import GrammarSpec, SamplingParams, TokenLogprobs
from luce.scheduler.plan import GRAMMAR_ENDED_TOKEN, RowStart, ScheduledSequence, StepPlan

CPU = torch.device("cpu")
VOCAB = 320
INFO = EngineInfo(
    architecture="table",
    device="cpu",
    dtype="float32",
    max_ctx=96,
    kv_pool_tokens=96,
    num_blocks=13,
    block_tokens=8,
    max_rows=2,
    weights_bytes=0,
    kv_bytes=0,
    vocab_size=VOCAB,
    kernels=(),
)
PROMPTS = ((9, 12, 40, 7), (300, 5, 6))
NUM_TOKENS = 4
VOCABULARY = [b"<end>", *(bytes([token % 256]) for token in range(VOCAB - 1))]
LETTERS = GrammarSpec("start: /[a-z ]{2,9}/")
GREEDY = SamplingParams(max_tokens=50)
DRAWN = SamplingParams(max_tokens=50, temperature=0.9, top_k=40, repetition_penalty=1.3)

CASES = {
    "grammar": (replace(GREEDY, grammar=LETTERS, stop_token_ids=(0,)), {}),
    "drawn": (replace(DRAWN, grammar=LETTERS, stop_token_ids=(0,), min_tokens=9), {}),
    "reported": (replace(DRAWN, grammar=LETTERS, stop_token_ids=(0,), logprobs=3), {}),
    "ends": (replace(GREEDY, grammar=GrammarSpec('start: "xy"')), {}),
    "short": (
        replace(GREEDY, min_tokens=2, stop_token_ids=tuple(range(0, 320, 2)), logprobs=1),
        {},
    ),
    "forced": (DRAWN, {1: 7, 2: 319}),
}
"""What both rows ask for, and the tokens forced on the first of them by output index."""


@dataclass(frozen=True)
class Table(Runner):
    """A model whose logits depend on the last token alone."""

    dtype: torch.dtype = torch.float32

    @property
    def step_tables(self) -> None:
        """Nothing is looked up."""

    def raw_logits(self, batch: InputBatch, tap: StepTap | None = None) -> torch.Tensor:
        assert tap is None
        table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(5)) * 3
        last = (
            batch.input_ids if batch.logits_index is None else batch.input_ids[batch.logits_index]
        )
        return table[last.long()].to(self.dtype)


def table(dtype: torch.dtype) -> Table:
    return Table(None, None, None, dtype=dtype)  # type: ignore[arg-type]


Launch = Callable[[StepPlan, StepExtras], Callable[[], SampledTokens]]


def host(dtype: torch.dtype = torch.float32) -> Launch:
    rows = RowState(2, Sampler(2, VOCAB, 96, CPU), CPU)

    def launch(plan: StepPlan, extras: StepExtras) -> Callable[[], SampledTokens]:
        rows.start(plan.starts)
        return table(dtype).sample(build_inputs(plan.items, rows, 8, CPU), rows, extras)

    return launch


class Replays:
    """A step "captured" without a graph, that leaves so many lines.

    Attributes:
        count: how often it was replayed.
    """

    def __init__(self, work: Callable[[list[StepLogits]], torch.Tensor], lines: int) -> None:
        self._work = work
        # Poison: what lies where a step left nothing must not matter.
        logits = StepLogits(
            torch.full((lines, VOCAB), float("nan"), dtype=torch.bfloat16),
            torch.full((lines, VOCAB), float("nan")),
        )
        self.step = _CapturedStep(self, torch.full((lines,), -9, dtype=torch.int32), logits)
        self.count = 0

    def replay(self) -> None:
        left: list[StepLogits] = []
        self.step.token_ids.copy_(self._work(left))
        self.step.logits.raw.copy_(left[0].raw)
        self.step.logits.wide.copy_(left[0].wide)
        self.count += 1


def replaying(executor: DeviceExecutor) -> tuple[Replays, Replays]:
    """Have decode steps, and the step of both prompts, be replayed with padding."""
    shape = StepShape(decode=1, chunks=3, tokens=9, longest=9, sampled=3)
    numbers = torch.from_numpy(step_numbers((), shape, INFO.block_tokens, INFO.max_rows))
    decode = Replays(partial(executor._decode, 3), 3)
    prompts = Replays(partial(executor._mixed_work, numbers, shape), 3)
    executor._sizes = (3,)
    executor._lanes = torch.zeros(3, 4, dtype=torch.int32)
    executor._ring = StepRing(3, (INFO.max_rows, 0, NULL_BLOCK, 0), CPU)
    executor._captured = {3: decode.step}
    executor._mixed = {shape: (numbers, prompts.step)}
    return decode, prompts


def generate(
    launch: Launch, sampling: SamplingParams, forced: dict[int, int]
) -> tuple[list[tuple[int, ...]], list[TokenLogprobs | None]]:
    """Ids of each step and all reports in order: one prefill of both rows, then decode steps."""
    extras = RowExtras(2, VOCAB)
    extras.constraints.use_vocabulary(VOCABULARY, [0], [0])
    steps: list[tuple[int, ...]] = []
    reports: list[TokenLogprobs | None] = []
    for index in range(NUM_TOKENS):
        starts, items = [], []
        for row, prompt in enumerate(PROMPTS):
            if index == 0:
                starts.append(RowStart(row, sampling, 77 + row, prompt, len(prompt)))
            items.append(
                ScheduledSequence(
                    row,
                    0 if index == 0 else len(prompt) + index - 1,
                    prompt if index == 0 else (),
                    (1 + row,),
                    sample=True,
                    output_index=index,
                    forced_token=forced.get(index) if row == 0 else None,
                )
            )
        plan = StepPlan(index + 1, tuple(starts), tuple(items))
        extras.start(plan.starts)
        with torch.inference_mode():
            sampled = launch(plan, extras.begin(plan.items))()
        steps.append(sampled.token_ids)
        reports += sampled.logprobs
        if min(sampled.token_ids) < 0:
            break
    extras.constraints.close()
    return steps, reports


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "replays"),
    [(torch.float32, False), (torch.bfloat16, True)],
    ids=["eager", "replayed"],
)
def test_the_same_as_on_the_host(case: str, dtype: torch.dtype, replays: bool) -> None:
    expected, reports = generate(host(dtype), *CASES[case])
    executor = DeviceExecutor(table(dtype), INFO, CPU)
    steps = replaying(executor) if replays else ()
    found, mine = generate(executor.launch, *CASES[case])
    assert found == expected
    for step, count in zip(steps, (len(expected) - 1, 1), strict=False):
        # Penalties change a replayed step's logits, so who reports the raw ones runs without.
        assert step.count == (0 if case == "reported" else count)
    assert len(mine) == len(reports)
    assert bool(mine) == (CASES[case][0].logprobs is not None)
    for ours, theirs in zip(mine, reports, strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert ours.top_ids == theirs.top_ids


def test_reports_are_of_the_raw_logits() -> None:
    """A bias that decides everything does not show in them."""
    executor = DeviceExecutor(table(torch.float32), INFO, CPU)
    asked = replace(GREEDY, logprobs=1, logit_bias={44: 1000.0})
    steps, reports = generate(executor.launch, asked, {})
    assert {token for step in steps for token in step} == {44}
    assert all(each is not None and each.logprob < -1 for each in reports)


def test_the_cases_are_what_they_say() -> None:
    """A case that binds nothing would prove nothing."""
    steps = {case: generate(host(), *asked)[0] for case, asked in CASES.items()}
    letters = {i for i, text in enumerate(VOCABULARY) if text.islower() or text == b" "}
    for case in ("grammar", "drawn", "reported"):
        assert {token for step in steps[case] for token in step} <= letters
    assert steps["ends"][2] == (GRAMMAR_ENDED_TOKEN, GRAMMAR_ENDED_TOKEN)
    assert [step[0] for step in steps["forced"]][1:3] == [7, 319]
    assert all(token % 2 for step in steps["short"][:2] for token in step)
