"""Attention of a few tokens with what stands around it: its own text, on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from luce.engine.ops.attention import HeadShape
from luce.engine.ops.cuda import decode_few
from luce.engine.ops.cuda.decode_few import FewGeometry, _room, attend_few
from luce.engine.ops.cuda.decode_few_choice import (
    _Trial,
    few_refusal,
    numbers_of,
    try_few,
)
from luce.engine.ops.triton.probe import TrialError
from support.cuda_host import COMPILER, STORES_HEADER, HostDevice

CPU = torch.device("cpu")
SMALL = FewGeometry(HeadShape(2, 1, 256), 64, 16, 1e-6, parts=2)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(STORES_HEADER)
    monkeypatch.setattr(decode_few, "compiled_kernel", device.compiled_kernel)
    decode_few._compiled.cache_clear()
    yield device
    decode_few._compiled.cache_clear()


@pytest.mark.parametrize(
    "geometry",
    [
        FewGeometry(HeadShape(16, 2, 256), 64, 16, 1e-6, order=False),
        FewGeometry(HeadShape(6, 1, 256), 128, 32, None, order=True, parts=3),
        FewGeometry(HeadShape(1, 1, 256), 64, 16, 1e-5, is_gated=False, parts=2),
    ],
)
def test_against_the_reference(host: HostDevice, geometry: FewGeometry) -> None:
    try_few(geometry, CPU)


def attended(rows: list[int]) -> torch.Tensor:
    """Results of some of the trial's tokens."""
    trial = _Trial.made(SMALL, CPU)
    places = trial.placing.places
    places = replace(places, rotary=places.rotary[rows], slot_mapping=places.slot_mapping[rows])
    left, arrivals = _room(SMALL, CPU)
    left.fill_(torch.nan)
    tensors = replace(
        trial.tensors,
        rows=trial.tensors.rows[rows],
        context_lens=trial.tensors.context_lens[rows],
        num_decode=len(rows),
    )
    placing = replace(trial.placing, places=places)
    found = attend_few(trial.projected[rows], placing, tensors, SMALL)
    assert not arrivals.any(), "counters are left as they were"
    return found


def test_a_row_does_not_depend_on_its_neighbours(host: HostDevice) -> None:
    together = attended([0, 1, 2])
    assert not together.isnan().any(), "what was not written was read"
    host.backwards = True
    decode_few._compiled.cache_clear()
    for rows in ([1], [2, 0]):
        assert torch.equal(attended(rows), together[rows])


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        ("unit * 16 + token < span.length - 1", "unit >= 0"),
        ("scale(exp2_of(top - most), at);", ""),
        ("*(uint4 *)(p.keys + place + at.own * 8) = shared.key[at.own];", ""),
        ("exp2_of(found[i][2].x - most)", "1"),
        ("at.t * 2 + i / 4) + 1) * D", "at.t * 2 + i / 4)) * D"),
    ],
)
def test_a_wrong_kernel_fails_its_trial(host: HostDevice, whole: str, part: str) -> None:
    def edited(text: str) -> str:
        assert text.count(whole) == 1
        return text.replace(whole, part)

    host.edit = edited
    with pytest.raises(TrialError):
        try_few(SMALL, CPU)


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        ("scale(exp2_of(top - most), at);", ""),
        ("copy_values(p, span, shared, at, next, rank);", ""),
    ],
)
def test_a_kernel_wrong_in_later_rounds_fails_its_trial(
    host: HostDevice, whole: str, part: str
) -> None:
    """Also where contexts have so many parts that each of the trial's is one round."""

    def edited(text: str) -> str:
        assert text.count(whole) == 1
        return text.replace(whole, part)

    host.edit = edited
    with pytest.raises(TrialError):
        try_few(replace(SMALL, parts=5), CPU)


def test_words_of_numbers() -> None:
    """Of two groups, in both orders: each column's code where the product looks for it."""
    columns = torch.arange(64)
    for order in (False, True):
        words = torch.zeros(1, 19, 2, dtype=torch.int32)
        for column in columns.tolist():
            of_eight = column % 8
            word, half = of_eight % 4, of_eight // 4
            if order:
                word, half = of_eight % 2 * 2 + of_eight // 4, of_eight // 2 % 2
            code = (column - 30) & 0xFFFF
            at = words[0, column % 32 // 8 * 4 + word]
            signed = code << 16 * half
            at[column // 32] |= signed - (1 << 32) if signed >= 1 << 31 else signed
        words[:, 16] = torch.tensor([0.5, 0.25]).view(torch.int32)
        expected = (columns - 30) * torch.where(columns < 32, 0.5, 0.25)
        assert torch.equal(numbers_of(words, order=order)[0], expected)


def test_what_it_is_made_for() -> None:
    assert SMALL.refusal is None
    for other in (
        replace(SMALL, block_tokens=24),
        replace(SMALL, rotated=96),
        replace(SMALL, rotated=256),
        replace(SMALL, heads=HeadShape(4, 1, 128)),
        replace(SMALL, heads=HeadShape(18, 2, 256)),
    ):
        assert other.refusal is not None
    tensors = _Trial.made(SMALL, CPU).tensors
    five, three = torch.zeros(5, 8), torch.zeros(3, 8)
    assert few_refusal(SMALL, tensors, five) == "made for up to 4 single tokens"
    assert few_refusal(SMALL, tensors, three) == "made for bfloat16"
