"""Extras: nothing for rows that ask for nothing, everything in the order of the lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from luce.engine.extras import RowExtras, SampledTokens, StepExtras
from luce.protocol.sampling import GrammarSpec, SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence

VOCAB = 40


@pytest.fixture
def extras() -> Iterator[RowExtras]:
    made = RowExtras(3, VOCAB)
    made.constraints.use_vocabulary([b"<end>", *(bytes([64 + i]) for i in range(39))], [0], [0])
    yield made
    made.constraints.close()


def start(extras: RowExtras, row: int, **params: object) -> None:
    sampling = SamplingParams(max_tokens=9, **params)  # type: ignore[arg-type]
    extras.start([RowStart(row, sampling, 0, (5,), 1)])


def item(row: int, *, sample: bool = True) -> ScheduledSequence:
    return ScheduledSequence(row, 0, (5,), (1,), sample=sample)


def finish(step: StepExtras, ids: list[int]) -> tuple[tuple[int, ...], list[float | None]]:
    step.look_at(torch.zeros(len(ids), VOCAB))
    sampled = step.begin_readback(torch.tensor(ids))()
    return sampled.token_ids, [each and each.logprob for each in sampled.logprobs]


def test_a_step_of_plain_rows(extras: RowExtras) -> None:
    for row in range(3):
        start(extras, row)
    step = extras.begin([item(row) for row in range(3)])
    assert step.masks() is None
    assert step.reporting_lines == ()
    assert finish(step, [4, 5, 6]) == ((4, 5, 6), [])


def test_lines_are_counted_among_the_sampled_items(extras: RowExtras) -> None:
    start(extras, 0, grammar=GrammarSpec('start: "A"'), logprobs=0)
    start(extras, 1)
    start(extras, 2, logprobs=1)
    step = extras.begin([item(1), item(0, sample=False), item(2)])
    assert step.masks() is None
    assert step.reporting_lines == (1,)
    ids, reports = finish(step, [4, 5])
    assert ids == (4, 5)
    assert reports[0] is None
    assert reports[1] == pytest.approx(-3.688879)


def test_a_grammar_goes_on_when_its_tokens_are_read(extras: RowExtras) -> None:
    start(extras, 0, grammar=GrammarSpec('start: "AB"'), stop_token_ids=(0,))
    for token_id in (2, 3, 0):
        step = extras.begin([item(0)])
        masks = step.masks()
        assert masks is not None
        assert masks.words.view("uint32").tolist() == [[1 << token_id, 0]]
        assert finish(step, [token_id])[0] == (token_id,)


def test_a_new_occupant_reports_only_what_it_asked_for(extras: RowExtras) -> None:
    start(extras, 0, logprobs=3)
    start(extras, 0)
    assert extras.begin([item(0)]).reporting_lines == ()


def sampled(step: StepExtras, *ids: int) -> Callable[[], SampledTokens]:
    """The step has computed and sampled."""
    step.look_at(torch.zeros(len(ids), VOCAB))
    assert step.masks() is not None
    return step.begin_readback(torch.tensor(ids))


def test_a_step_behind_another_waits_with_its_masks_for_the_other_s_tokens(
    extras: RowExtras,
) -> None:
    start(extras, 0, grammar=GrammarSpec('start: "AB" | "CD"'))
    first = extras.begin([item(0)])
    read_first = sampled(first, 2)
    second = extras.begin([item(0)])
    masks = second.masks()
    assert masks is not None
    bits = masks.words.view("uint8")[0]
    assert [i for i in range(VOCAB) if bits[i >> 3] >> (i & 7) & 1] == [3], "A is known: B"
    read_second = second.begin_readback(torch.tensor([3]))
    # Reading twice settles once: the grammar has not gone on by two As.
    assert read_first().token_ids == read_first().token_ids == (2,)
    assert read_second().token_ids == (3,)


def test_a_step_behind_one_of_other_rows_waits_for_nothing(extras: RowExtras) -> None:
    start(extras, 0, grammar=GrammarSpec('start: "AB"'))
    start(extras, 1, grammar=GrammarSpec('start: "CD"'))
    read_first = sampled(extras.begin([item(0)]), 2)
    second = extras.begin([item(1)])
    read_second = sampled(second, 4)
    constraints = second._constraints
    assert constraints is not None
    assert constraints._source is not None
    assert constraints._source._behind is None
    assert (read_second().token_ids, read_first().token_ids) == ((4,), (2,))


def test_a_row_that_starts_anew_does_not_wait_for_its_former_occupant(extras: RowExtras) -> None:
    start(extras, 0, grammar=GrammarSpec('start: "AB"'))
    sampled(extras.begin([item(0)]), 2)
    start(extras, 0, grammar=GrammarSpec('start: "CD"'))
    read = sampled(extras.begin([item(0)]), 4)
    assert read().token_ids == (4,)
