"""Row state: last tokens and new occupants."""

from __future__ import annotations

import math

import torch

from luce.engine.rows import RowState
from luce.engine.sampling.sampler import Sampler
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart

CPU = torch.device("cpu")
GREEDY = SamplingParams(max_tokens=10)


def state() -> RowState:
    found = RowState(4, Sampler(4, 6, 64, CPU), CPU)
    found.start([RowStart(row, GREEDY, 0, (row,), 1) for row in range(4)])
    return found


def one_hot(*ids: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(ids), 6).float()


def test_sampled_tokens_are_the_next_input() -> None:
    rows = state()
    assert rows.last_tokens([0, 1, 2, 3]).tolist() == [0, 1, 2, 3]
    assert rows.sample(one_hot(5, 4), [3, 1], [0, 0]).tolist() == [5, 4]
    assert rows.last_tokens([3, 2, 1, 0]).tolist() == [5, 2, 4, 0]
    assert rows.last_tokens([1]).dtype == torch.int32


def test_a_new_occupant_brings_its_own_last_token() -> None:
    rows = state()
    rows.sample(one_hot(5), [2], [0])
    rows.start([RowStart(2, GREEDY, 0, (1, 3), 1)])
    assert rows.last_tokens([2]).tolist() == [3]


def test_a_failed_row_leaves_a_token_of_the_vocabulary() -> None:
    rows = state()
    assert rows.sample(torch.full((1, 6), math.nan), [1], [0]).tolist() == [-1]
    assert rows.last_tokens([1]).tolist() == [0]
