"""Tokens chosen natively, against the sampler's own operations, at every level."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.cpu.native import NativeOps
from luce.engine.ops.cpu.native_choice import NativeChooser
from luce.engine.sampling.draw import DrawParams, choose, kept_probabilities

VOCAB = 5003
# Of the whole sum: how near to a border a drawn number may be for either token to be right.
BORDER = 1e-6
CUTS = [
    (0, 1.0, 0.0),
    (1, 1.0, 0.0),
    (40, 0.95, 0.05),
    (0, 0.9, 0.0),
    (0, 0.999999, 0.0),
    (VOCAB, 0.0, 0.2),
    (5000, 0.5, 0.0),
]


def params(cut: tuple[int, float, float], uniform: float, temperature: float = 0.8) -> DrawParams:
    top_k, top_p, min_p = cut
    return DrawParams(temperature, top_k, top_p, min_p, uniform)


def noise(rows: int, seed: int, *, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("scale", [0.01, 3.0, 40.0])
def test_draws_are_those_of_the_reference(
    ops: NativeOps, cut: tuple[int, float, float], scale: float
) -> None:
    rows = 24
    logits = noise(rows, 5, scale=scale)
    wanted = [params(cut, line / rows + 0.01) for line in range(rows)]
    found = NativeChooser(ops.tape.library)(logits.clone(), wanted)
    sums = kept_probabilities(logits, wanted).double().cumsum(-1)
    sums /= sums[:, -1:].clone()
    for line, token in enumerate(found.tolist()):
        low = sums[line, token - 1] if token else 0.0
        assert low - BORDER <= wanted[line].uniform <= sums[line, token] + BORDER
    same = found == choose(logits, wanted)
    assert int(same.sum()) >= rows - 1, "borders are rarely met"


@pytest.mark.parametrize("cut", CUTS)
def test_equal_tokens_are_kept_or_cut_together(
    ops: NativeOps, cut: tuple[int, float, float]
) -> None:
    logits = noise(16, 6).round()
    wanted = [params(cut, (line + 0.37) / 16) for line in range(16)]
    found = NativeChooser(ops.tape.library)(logits.clone(), wanted)
    assert torch.equal(found, choose(logits, wanted))


def test_the_likeliest_is_the_first_of_equals(ops: NativeOps) -> None:
    logits = noise(9, 7).round()
    logits[3] = 0
    logits[4] = -torch.inf
    logits[4, 77] = -5
    found = NativeChooser(ops.tape.library)(logits.clone(), [None] * 9)
    assert torch.equal(found, choose(logits, [None] * 9))
    assert found[3] == 0
    assert found[4] == 77


@pytest.mark.parametrize("top_k", [-1, VOCAB, 2**31, 2**32 + 1])
def test_a_limit_beyond_the_vocabulary_is_none(ops: NativeOps, top_k: int) -> None:
    logits = noise(8, 11)
    wanted = [params((top_k, 1.0, 0.0), (line + 0.37) / 8) for line in range(8)]
    found = NativeChooser(ops.tape.library)(logits.clone(), wanted)
    assert torch.equal(found, choose(logits, wanted))
    assert len(set(found.tolist())) > 4


@pytest.mark.parametrize("place", [0, 1234, VOCAB - 1])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_fails_its_own_row(ops: NativeOps, place: int, value: float) -> None:
    logits = noise(4, 8)
    logits[1, place] = logits[2, place] = value
    wanted = [None, None, params(CUTS[2], 0.5), params(CUTS[2], 0.5)]
    found = NativeChooser(ops.tape.library)(logits.clone(), wanted)
    assert torch.equal(found, choose(logits, wanted))
    assert found.tolist()[1:3] == [-1, -1]


def test_nothing_to_choose_from(ops: NativeOps) -> None:
    logits = torch.full((2, VOCAB), -torch.inf)
    found = NativeChooser(ops.tape.library)(logits, [None, params(CUTS[0], 0.5)])
    assert found.tolist() == [-1, -1]


def test_masked_tokens_are_never_drawn(ops: NativeOps) -> None:
    logits = noise(2, 9)
    allowed = torch.zeros(VOCAB, dtype=torch.bool)
    allowed[[3, 4000, VOCAB - 1]] = True
    logits.masked_fill_(~allowed, -torch.inf)
    for number in (0.0, 0.3, 0.7, 1 - 2**-53):
        wanted = [params(CUTS[2], number), params(CUTS[0], number, temperature=1e30)]
        found = NativeChooser(ops.tape.library)(logits.clone(), wanted)
        assert torch.equal(found, choose(logits, wanted))
        assert all(allowed[token] for token in found.tolist())


def test_neighbours_and_threads_change_nothing(ops: NativeOps) -> None:
    logits = noise(13, 10)
    wanted = [None if line % 3 == 0 else params(CUTS[line % 7], line / 13) for line in range(13)]
    chooser = NativeChooser(ops.tape.library)
    found = [
        chooser(logits[line : line + 1].clone(), [each])[0].item()
        for line, each in enumerate(wanted)
    ]
    for threads in (1, 2, 3):
        ops.tape.library.use_threads(threads)
        assert chooser(logits.clone(), wanted).tolist() == found
