"""The engine on a GPU: the CPU's logits and ids, however the work is laid out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from bench.engine.shapes import RandomParameters, hparams_of
from engine_harness import Driver, Request

from luce.engine.device import open_device
from luce.engine.device_inputs import mixed_step
from luce.engine.engine import Blueprint, Engine
from luce.engine.lent_memory import lent
from luce.engine.options import EngineOptions
from luce.engine.pinned_slots import PinnedSlots
from luce.errors import DeviceOutOfMemory
from luce.protocol.sampling import SamplingParams, TokenLogprobs
from luce.scheduler.plan import FAILED_TOKEN, RowStart, ScheduledSequence, StepPlan
from luce.sizing.model_sizes import Sizing

VOCAB = 1024
GREEDY = SamplingParams(max_tokens=1 << 20)
SAMPLED = SamplingParams(
    max_tokens=1 << 20, temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.2
)


class Moved(RandomParameters):
    """The same numbers on every device and in every type."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(torch.float32, torch.device("cpu"), seed=5)
        self._target = {"dtype": dtype, "device": device}

    def _normal(self, *shape: int, spread: float) -> torch.Tensor:
        return super()._normal(*shape, spread=spread).to(**self._target)


def make(
    device: str, dtype: torch.dtype = torch.float32, rows: int = 64, *, warm: bool = False
) -> Engine:
    options = EngineOptions(
        path=None,  # type: ignore[arg-type]
        device=device,
        max_concurrency=rows,
        max_ctx=640,
        chunk=256,
        cpu_exact=True,
    )
    sizing = Sizing(640, 2600, 0, 0, 0)
    where = open_device(device)
    blueprint = Blueprint("qwen3", hparams_of("tiny"), options, where, dtype, sizing)
    with torch.inference_mode():
        engine = Engine(blueprint, Moved(dtype, where.torch), lambda *_: None)
    if warm:
        engine.warm_up()
    return engine


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    lens = [int(torch.randint(1, 300, (), generator=generator)) for _ in range(count)]
    return [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in lens]


def requests(count: int, sampling: SamplingParams = GREEDY, tokens: int = 24) -> list[Request]:
    return [
        Request(prompt, tokens, sampling, seed=i, arrival=i % 5)
        for i, prompt in enumerate(prompts(count))
    ]


def logits(engine: Engine, ids: list[int]) -> torch.Tensor:
    item = ScheduledSequence(0, 0, tuple(ids), tuple(range(1, 40)), sample=True)
    with torch.inference_mode():
        if engine._executor is None:
            from engine_harness import all_logits

            return all_logits(engine, ids, [len(ids)], range(1, 40))[-1]
        step = mixed_step([item], engine._executor._rows, 16)
        found = engine._runner.logits(step.batch)
        assert found is not None
        return found[0].cpu()


def assert_same(
    engine: Engine, found: list[list[int]], expected: list[list[int]], prompts: list[list[int]]
) -> None:
    """The same ids, but for places where two tokens are equally likely as far as rounding goes."""
    for prompt, mine, theirs in zip(prompts, found, expected, strict=True):
        index = next(
            (i for i, pair in enumerate(zip(mine, theirs, strict=True)) if pair[0] != pair[1]), None
        )
        if index is None:
            continue
        values = logits(engine, [*prompt, *theirs[:index]])
        gap = (values[mine[index]] - values[theirs[index]]).abs() / values.abs().max()
        assert gap.item() < 1e-5, f"token {index}: {mine[index]} for {theirs[index]}, gap {gap:.1e}"


@pytest.fixture(scope="module")
def cpu() -> Engine:
    return make("cpu")


@pytest.fixture(scope="module")
def eager() -> Engine:
    return make("cuda:0")


@pytest.fixture(scope="module")
def graphed() -> Engine:
    return make("cuda:0", warm=True)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)]
)
def test_logits(cpu: Engine, dtype: torch.dtype, bound: float) -> None:
    ids = prompts(9)[-1] + prompts(3)[0]
    expected, found = logits(cpu, ids), logits(make("cuda:0", dtype), ids)
    assert ((found - expected).norm() / expected.norm()).item() < bound


def test_steps_with_prompts_are_captured(graphed: Engine) -> None:
    assert graphed._executor is not None
    found = {(shape.decode, shape.tokens) for shape in graphed._executor._mixed}
    # A tiny model is quick: sizes between short prompts and full chunks are there too.
    assert found == {(16, 64), *((lanes, tokens) for lanes in (0, 64) for tokens in (64, 128, 256))}


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_same_ids_as_on_a_cpu(cpu: Engine, graphed: Engine, sampling: SamplingParams) -> None:
    expected = Driver(cpu).run(requests(12, sampling))
    assert Driver(graphed).run(requests(12, sampling)) == expected
    assert len({tuple(ids) for ids in expected}) == 12


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_graphs_and_batch_do_not_matter(
    eager: Engine, graphed: Engine, sampling: SamplingParams, batch: int
) -> None:
    expected = Driver(eager).run(requests(64, sampling))
    found: list[list[int]] = []
    for first in range(0, 64 if batch > 1 else 8, batch):
        found += Driver(graphed, shuffle=first).run(requests(64, sampling)[first : first + batch])
    if sampling is GREEDY:
        assert_same(eager, found, expected[: len(found)], prompts(64)[: len(found)])
        return
    assert found == expected[: len(found)]


@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_chunks_do_not_matter(graphed: Engine, chunk: int) -> None:
    expected = Driver(graphed).run(requests(6))
    found = Driver(graphed, chunk=chunk).run(requests(6))
    assert_same(graphed, found, expected, prompts(6))


def test_preemption_does_not_matter(graphed: Engine) -> None:
    expected = Driver(graphed).run(requests(6, SAMPLED))
    again = requests(6, SAMPLED)
    again[2].preempt_at = 9
    assert Driver(graphed).run(again) == expected


def test_steps_wait_for_nothing(graphed: Engine) -> None:
    """A step launched behind a running one returns before that has ended."""
    start = RowStart(0, GREEDY, 0, (1, 2, 3), 3)
    graphed.step(
        StepPlan(1, (start,), (ScheduledSequence(0, 0, (1, 2, 3), (1,), sample=True),))
    ).result()
    torch.cuda._sleep(400_000_000)
    pending = [
        graphed.step(
            StepPlan(
                2 + i, (), (ScheduledSequence(0, 3 + i, (), (1,), sample=True, output_index=1 + i),)
            )
        )
        for i in range(2)
    ]
    assert not torch.cuda.current_stream().query(), "a step waited for the device"
    assert all(0 <= each.result().token_ids[0] < VOCAB for each in pending)


def extras_run(engine: Engine, sampling: SamplingParams) -> tuple[list[int], list[TokenLogprobs]]:
    """Ids and reports of a row that decodes beside a plain one; its third token is forced."""
    prompt = tuple(prompts(9)[-1])
    ids: list[int] = []
    reports: list[TokenLogprobs] = []
    for index in range(12):
        first = index == 0
        items = tuple(
            ScheduledSequence(
                row,
                0 if first else len(prompt) + index - 1,
                prompt if first else (),
                tuple(range(1 + 40 * row, 41 + 40 * row)),
                sample=True,
                output_index=index,
                forced_token=77 if (row, index) == (0, 2) else None,
            )
            for row in range(2)
        )
        starts = tuple(
            RowStart(row, each, 9, prompt, len(prompt))
            for row, each in enumerate((sampling, GREEDY))
        )
        result = engine.step(StepPlan(index + 1, starts if first else (), items)).result()
        ids += result.token_ids
        reports += [each for each in result.logprobs if each is not None]
    return ids, reports


@pytest.mark.parametrize("logprobs", [None, 4])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_masks_and_reports_behind_a_graph(
    eager: Engine, graphed: Engine, sampling: SamplingParams, logprobs: int | None
) -> None:
    """A least length bars half of the tokens of the first steps; one token is forced."""
    odd = replace(
        sampling, min_tokens=8, stop_token_ids=tuple(range(0, VOCAB, 2)), logprobs=logprobs
    )
    expected, reports = extras_run(eager, odd)
    found, mine = extras_run(graphed, odd)
    assert found == expected
    assert found[4] == 77
    assert all(token_id % 2 for token_id in found[:16:2])
    assert len(mine) == len(reports) == (0 if logprobs is None else 12)
    for ours, theirs in zip(mine, reports, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert ours.top_ids == theirs.top_ids


def test_out_of_memory_fails_the_step_alone(
    graphed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Driver(graphed).run(requests(2))
    executor = graphed._executor
    assert executor is not None

    def exhausted(*_: object) -> None:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

    with monkeypatch.context() as patch:
        patch.setattr(type(executor), "_run", exhausted)
        with pytest.raises(DeviceOutOfMemory):
            Driver(graphed).run(requests(1))
    assert Driver(graphed).run(requests(2)) == expected


def test_broken_weights_fail_the_row_and_nothing_else() -> None:
    engine = make("cuda:0", torch.float16, rows=2)
    with torch.inference_mode():
        engine._runner.model._norm.weight.fill_(float("nan"))  # type: ignore[attr-defined]
    request = Request([1, 2, 3], 4)
    Driver(engine).run([request])
    assert request.output[0] == FAILED_TOKEN


def test_lent_memory_is_the_tensors_own() -> None:
    whole = torch.zeros(4, 6, dtype=torch.bfloat16, device="cuda:0")
    part = whole[1:3, ::2]
    view = lent(part)
    assert view.data_ptr() == part.data_ptr()
    view.fill_(3)
    assert whole.sum() == 18 == part.sum()
    assert view.stride() == part.stride()


def test_numbers_come_and_go_through_pinned_slots() -> None:
    slots = PinnedSlots(torch.device("cuda", 0))
    assert slots._slots, "kernels cannot copy pinned memory here"
    target = torch.zeros(3, 4, dtype=torch.int32, device="cuda:0")
    reads = []
    for turn in range(20):
        slots.send(np.arange(12, dtype=np.int32).reshape(3, 4) + turn, target)
        reads.append(slots.begin_read(target.flatten()[:5]))
    assert [read() for read in reads] == [list(range(turn, turn + 5)) for turn in range(20)]
