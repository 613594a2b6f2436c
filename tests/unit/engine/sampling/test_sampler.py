"""The sampler's chain: order, rows of their own, reuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from luce.engine.sampling.masks import TokenMasks, set_bits
from luce.engine.sampling.sampler import Sampler
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart

VOCAB = 12


def sampler(rows: int = 4) -> Sampler:
    return Sampler(rows, VOCAB, 100, torch.device("cpu"))


def start(
    target: Sampler, row: int, history: tuple[int, ...] = (0,), seed: int = 0, **params: object
) -> None:
    sampling = SamplingParams(max_tokens=10, **params)  # type: ignore[arg-type]
    target.start(RowStart(row, sampling, seed, history, len(history)))


def logits(*best: int) -> torch.Tensor:
    """Rows whose likeliest tokens are 4.0 at `best`, then 3.5, 3.0, ... at the ids after it."""
    rows = torch.zeros(len(best), VOCAB)
    for row, token in enumerate(best):
        for rank in range(6):
            rows[row, (token + rank) % VOCAB] = 4.0 - rank / 2
    return rows


def test_greedy() -> None:
    target = sampler()
    for row in range(3):
        start(target, row)
    assert target.sample(logits(3, 9, 0), [0, 1, 2], [0, 0, 0]).tolist() == [3, 9, 0]


def test_greedy_ties_take_the_lowest_id() -> None:
    target = sampler()
    start(target, 0)
    flat = torch.zeros(1, VOCAB)
    flat[0, [4, 7]] = 1.0
    assert target.sample(flat, [0], [0]).tolist() == [4]


def test_penalties_apply_to_greedy_and_look_at_the_prompt() -> None:
    target = sampler()
    start(target, 0, history=(3, 3), frequency_penalty=0.4)
    start(target, 1, history=(3, 3), presence_penalty=0.4)
    start(target, 2, history=(3,), repetition_penalty=1.2)
    start(target, 3, history=(3, 3))
    found = target.sample(logits(3, 3, 3, 3), [0, 1, 2, 3], [0] * 4)
    # 4 - 0.8 < 3.5; 4 - 0.4 > 3.5; 4 / 1.2 < 3.5.
    assert found.tolist() == [4, 3, 4, 3]


def test_penalties_see_what_was_sampled() -> None:
    target = sampler()
    start(target, 0, history=(11,), presence_penalty=1.1)
    found = [target.sample(logits(3), [0], [index]).item() for index in range(3)]
    assert found == [3, 4, 5]


def test_window_forgets() -> None:
    target = sampler()
    start(target, 0, history=(11,), presence_penalty=2.0, rep_window=2)
    found = [target.sample(logits(3), [0], [index]).item() for index in range(5)]
    # With two tokens remembered, the first comes back as soon as it has left the window.
    assert found == [3, 4, 5, 3, 4]


@pytest.mark.parametrize(
    "params", [{"rep_window": 0, "presence_penalty": 5.0}, {"repetition_penalty": 1.0}]
)
def test_penalties_that_are_off(params: dict[str, Any]) -> None:
    target = sampler()
    start(target, 0, history=(3, 3), **params)
    assert target.sample(logits(3), [0], [0]).tolist() == [3]


def test_bias_comes_after_penalties() -> None:
    target = sampler()
    start(target, 0, history=(8,), repetition_penalty=4.0, logit_bias={8: 4.1})
    # 0 stays 0 under the penalty and then rises to 4.1; the other way round it would end at 1.
    assert target.sample(logits(3), [0], [0]).tolist() == [8]


def test_bias_forbids() -> None:
    target = sampler()
    start(target, 0, logit_bias={3: -100.0, 4: -100.0})
    assert target.sample(logits(3), [0], [0]).tolist() == [5]


def test_rows_are_their_own() -> None:
    target = sampler()
    start(target, 0, logit_bias={1: 50.0})
    start(target, 1, history=(3, 3), presence_penalty=5.0)
    start(target, 2, temperature=1.0, top_k=1)
    start(target, 3)
    assert target.sample(logits(3, 3, 3, 3), [0, 1, 2, 3], [0] * 4).tolist() == [1, 4, 3, 3]
    # In another order and company the same.
    assert target.sample(logits(3, 3), [3, 0], [1, 1]).tolist() == [3, 1]


def test_a_new_occupant_inherits_nothing() -> None:
    target = sampler()
    start(target, 0, history=(3,), presence_penalty=5.0, logit_bias={1: 50.0}, temperature=1.0)
    target.sample(logits(3), [0], [0])
    start(target, 0)
    assert target.sample(logits(3), [0], [0]).tolist() == [3]


def test_number_depends_on_seed_and_index_alone() -> None:
    target = sampler()
    for row, seed in enumerate((0, 7, 0)):
        start(target, row, seed=seed, temperature=1.5)

    def ids(rows: list[int], index: int) -> list[int]:
        return target.sample(torch.zeros(len(rows), VOCAB), rows, [index] * len(rows)).tolist()

    singles = [[ids([row], index)[0] for index in range(30)] for row in range(3)]
    together = [ids([2, 0, 1], index) for index in range(30)]
    assert [step[1] for step in together] == singles[0] == singles[2]
    assert [step[2] for step in together] == singles[1]
    assert singles[0] != singles[1]
    assert len(set(singles[0])) > 5


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_greedy_logits_that_are_not_numbers(value: float) -> None:
    target = sampler()
    start(target, 0, presence_penalty=1.0)
    start(target, 1)
    rows = logits(3, 3)
    rows[0, 5] = value
    assert target.sample(rows, [0, 1], [0, 0]).tolist() == [-1, 3]
    # The failed row's window is still sound.
    assert target.sample(logits(3), [0], [1]).tolist() == [3]


def test_a_repetition_penalty_below_1_asks_for_repetition() -> None:
    target = sampler()
    start(target, 0, history=(5,), repetition_penalty=0.7)
    start(target, 1, history=(5,), repetition_penalty=0.8)
    start(target, 2, history=(5,), repetition_penalty=0.5)
    lines = logits(3, 3, 3)
    lines[2] -= 10.0
    # 3 / 0.7 > 4; 3 / 0.8 < 4; -7 * 0.5 > -6.
    assert target.sample(lines, [0, 1, 2], [0, 0, 0]).tolist() == [5, 3, 5]


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e-46},
    {"temperature": 1e-300, "top_k": 3},
    {"temperature": 1e39, "top_k": 5},
    {"temperature": 1e308, "min_p": 0.5, "top_p": 0.5},
    {"temperature": 1.0, "min_p": 1e-320, "top_p": 1e-320},
    {"repetition_penalty": 1e-46},
    {"repetition_penalty": 1e300},
    {"frequency_penalty": 1e300},
    {"frequency_penalty": -1e300, "presence_penalty": 1e300},
    {"logit_bias": {4: 1e300, 3: -1e300}},
    {"logit_bias": dict.fromkeys(range(VOCAB), -1e39)},
    {"temperature": 1e-30, "repetition_penalty": 1e39, "frequency_penalty": 1e39},
]


@pytest.mark.parametrize("params", EXTREMES)
def test_no_legal_number_breaks_a_row(params: dict[str, Any]) -> None:
    target = sampler()
    start(target, 0, history=(3, 8), **params)
    start(target, 1, history=(3, 8))
    for index in range(5):
        found = target.sample(logits(3, 3), [0, 1], [index, index]).tolist()
        assert 0 <= found[0] < VOCAB
        assert found[1] == 3


def test_a_temperature_too_small_to_divide_by_is_greedy_ties_included() -> None:
    target = sampler()
    for row, temperature in enumerate((1e-31, 1e-46, 5e-324)):
        start(target, row, seed=row, temperature=temperature)
    flat = torch.zeros(3, VOCAB)
    flat[:, [4, 7]] = 1.0
    for index in range(8):
        assert target.sample(flat.clone(), [0, 1, 2], [index] * 3).tolist() == [4, 4, 4]


def masks_of(*allowed: tuple[int, set[int]]) -> TokenMasks:
    words = np.zeros((len(allowed), 1), dtype=np.int32)
    for mask, (_, ids) in zip(words, allowed, strict=True):
        set_bits(mask, ids, allowed=True)
    return TokenMasks(tuple(line for line, _ in allowed), words)


def test_masks_come_after_bias_and_leave_other_lines_alone() -> None:
    target = sampler()
    start(target, 0, logit_bias={9: 100.0})
    start(target, 1)
    start(target, 2)
    masks = masks_of((0, {3, 4}), (2, {0}))
    assert target.sample(logits(3, 3, 3), [0, 1, 2], [0] * 3, masks).tolist() == [3, 3, 0]


def test_masked_draws_stay_inside_the_mask_and_cover_it() -> None:
    target = sampler()
    start(target, 0, temperature=50.0, top_k=VOCAB - 1, seed=3)
    found = {
        int(target.sample(logits(3), [0], [index], masks_of((0, {1, 7, 8}))).item())
        for index in range(60)
    }
    assert found == {1, 7, 8}


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2, "top_p": 0.1}]
)
def test_a_mask_of_one_token_chooses_it(params: dict[str, Any]) -> None:
    target = sampler()
    start(target, 0, logit_bias={6: -1e9}, min_p=0.9, **params)
    assert target.sample(logits(3), [0], [0], masks_of((0, {6}))).tolist() == [6]


def test_penalties_see_what_a_mask_chose() -> None:
    target = sampler()
    start(target, 0, history=(0,), presence_penalty=1.0)
    assert target.sample(logits(3), [0], [0], masks_of((0, {4}))).tolist() == [4]
    masks = masks_of((0, {4, 5}))
    # 3.5 - 1 < 3.0: the token that the mask chose is penalised like any other.
    assert target.sample(logits(3), [0], [1], masks).tolist() == [5]


def test_a_masked_row_that_is_not_a_number_still_fails() -> None:
    target = sampler()
    start(target, 0)
    assert (
        target.sample(torch.full((1, VOCAB), math.nan), [0], [0], masks_of((0, {2}))).item() == -1
    )
