"""Log probabilities: of the raw logits, for the lines that ask, as many as each asks for."""

from __future__ import annotations

import math

import pytest
import torch

from luce.engine.sampling.logprobs import RawLogprobs
from luce.protocol.sampling import TokenLogprobs


def report(
    logits: torch.Tensor, wanted: list[int | None], ids: list[int]
) -> tuple[TokenLogprobs | None, ...]:
    raw = RawLogprobs.of(logits, wanted)
    assert raw is not None
    logits.fill_(math.nan)  # Sampling overwrites them.
    return raw.unpacked(raw.packed(torch.tensor(ids)).tolist(), len(wanted))


def test_nobody_asks() -> None:
    assert RawLogprobs.of(torch.zeros(2, 4), [None, None]) is None
    assert RawLogprobs.of(torch.zeros(2, 4), []) is None


def test_values_are_those_of_the_softmax() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    expected = logits[0].double().softmax(0).log()
    (found,) = report(logits, [3], [17])
    assert found is not None
    assert found.logprob == pytest.approx(expected[17].item(), abs=1e-5)
    best = expected.topk(3)
    assert found.top_ids == tuple(best.indices.tolist())
    assert found.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)


def test_each_line_gets_what_it_asked_for() -> None:
    logits = torch.tensor([[0.0, 1, 2, 3]]).repeat(4, 1)
    found = report(logits, [0, None, 2, 1], [3, 3, 0, 3])
    assert found[1] is None
    counts = [len(each.top_ids) for each in found if each is not None]
    assert counts == [0, 2, 1]
    assert found[2] is not None
    assert found[2].top_ids == (3, 2)
    assert found[2].top_logprobs[0] - found[2].logprob == pytest.approx(3.0)
    assert found[0] is not None
    assert found[0].logprob == found[2].top_logprobs[0]


def test_no_more_than_the_vocabulary() -> None:
    (found,) = report(torch.zeros(1, 4), [20], [1])
    assert found is not None
    assert sorted(found.top_ids) == [0, 1, 2, 3]
    assert found.logprob == pytest.approx(-math.log(4))


def test_a_failed_row_does_not_disturb_the_others() -> None:
    logits = torch.tensor([[math.nan, 0.0], [0.0, 0.0]])
    found = report(logits, [1, 1], [-1, 0])
    assert found[1] == TokenLogprobs(
        pytest.approx(-math.log(2)), (0,), (pytest.approx(-math.log(2)),)
    )
