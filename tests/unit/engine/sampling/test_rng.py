"""Philox against its published vectors, and uniforms as a function of seed and index."""

from __future__ import annotations

import statistics

import pytest

from luce.engine.sampling.rng import philox, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        # Known answers of the Random123 distribution, philox4x32 10.
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert philox(counter, key) == expected


def test_uniform_is_uniform() -> None:
    values = [uniform(seed, index) for seed in range(40) for index in range(100)]
    assert all(0.0 <= value < 1.0 for value in values)
    assert len(set(values)) == len(values)
    assert statistics.mean(values) == pytest.approx(0.5, abs=0.02)
    assert statistics.pvariance(values) == pytest.approx(1 / 12, abs=0.005)
    for low in range(10):
        share = sum(low / 10 <= value < (low + 1) / 10 for value in values) / len(values)
        assert share == pytest.approx(0.1, abs=0.02)


def test_seed_and_index_matter_in_full_width() -> None:
    base = uniform(0, 0)
    for seed, index in ((1, 0), (0, 1), (1 << 32, 0), (1 << 63, 0), (0, 1 << 32)):
        assert uniform(seed, index) != base
        assert uniform(seed, index) == uniform(seed, index)
