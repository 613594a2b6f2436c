"""Steps as numbers for a device: exact, and with room to spare."""

from __future__ import annotations

import numpy as np
import pytest

from luce.engine.device_inputs import StepShape, step_numbers
from luce.engine.mixed_shapes import fitting, mixed_shapes
from luce.scheduler.plan import ScheduledSequence
from luce.sizing.steps import prompt_sizes

P, PADDING_ROW = 4, 9
ITEMS = (
    ScheduledSequence(2, 6, (), (11, 12), sample=True, output_index=3),
    ScheduledSequence(0, 4, (70, 71, 72), (21, 22), sample=False),
    ScheduledSequence(5, 0, (80, 81), (31,), sample=True),
)
NAMES = ("decode", "lanes", "ids", "positions", "slots", "starts", "rows", "lens", "last")


def numbers(shape: StepShape, items: tuple[ScheduledSequence, ...] = ITEMS) -> dict[str, list[int]]:
    flat = step_numbers(items, shape, P, PADDING_ROW)
    assert flat.dtype == np.int32
    assert flat.size == sum(shape.parts)
    parts = np.split(flat, np.cumsum(shape.parts)[:-1])
    return {name: part.tolist() for name, part in zip(NAMES, parts, strict=True)}


def test_an_exact_step() -> None:
    shape = StepShape.of(ITEMS)
    assert shape == StepShape(decode=1, chunks=2, tokens=5, longest=3, sampled=2)
    assert numbers(shape) == {
        "decode": [2, 6, 12, 3],
        "lanes": [2, 6, 0, 3, 5, 1, 0, 0],
        "ids": [70, 71, 72, 80, 81],
        "positions": [4, 5, 6, 0, 1],
        "slots": [88, 89, 90, 124, 125],
        "starts": [0, 1, 4, 6],
        "rows": [2, 0, 5],
        "lens": [7, 7, 2],
        "last": [0, 5],
    }


def test_room_to_spare_is_padding() -> None:
    lane = [PADDING_ROW, 0, 0, 0]
    assert numbers(StepShape(decode=3, chunks=4, tokens=7, longest=7, sampled=4)) == {
        "decode": [2, 6, 12, 3, *lane, *lane],
        "lanes": [2, 6, 0, 3, 5, 1, 0, 0, *lane, *lane],
        "ids": [70, 71, 72, 80, 81, 0, 0],
        "positions": [4, 5, 6, 0, 1, 0, 0],
        "slots": [88, 89, 90, 124, 125, 0, 0],
        "starts": [0, 1, 2, 3, 6, 8, 8, 8],
        "rows": [2, PADDING_ROW, PADDING_ROW, 0, 5, PADDING_ROW, PADDING_ROW],
        "lens": [7, 1, 1, 7, 2, 0, 0],
        "last": [0, 7, 0, 0],
    }


def test_nothing_but_padding() -> None:
    found = numbers(StepShape(2, 1, 3, 3, 2), ())
    assert (found["starts"], found["lens"], found["last"]) == ([0, 1, 2, 2], [1, 1, 0], [0, 0])


@pytest.mark.parametrize(
    ("rows", "chunk", "expected"),
    [
        (
            256,
            2048,
            [
                (0, 8, 64, 8),
                (16, 8, 64, 24),
                (64, 8, 64, 72),
                (256, 8, 64, 256),
                (0, 16, 2048, 16),
                (64, 16, 2048, 80),
                (128, 16, 2048, 144),
                (256, 16, 2048, 256),
            ],
        ),
        (4, 512, [(0, 4, 64, 4), (4, 4, 64, 4), (0, 4, 512, 4), (4, 4, 512, 4)]),
        (
            64,
            4096,
            [
                (0, 8, 64, 8),
                (16, 8, 64, 24),
                (64, 8, 64, 64),
                (0, 16, 4096, 16),
                (64, 16, 4096, 64),
            ],
        ),
        (2, 16, [(0, 2, 16, 2), (2, 2, 16, 2)]),
    ],
)
def test_shapes(rows: int, chunk: int, expected: list[tuple[int, ...]]) -> None:
    found = mixed_shapes(rows, chunk)
    assert [(each.decode, each.chunks, each.tokens, each.sampled) for each in found] == expected
    assert all(each.longest == each.tokens for each in found)
    assert len(found) <= len(prompt_sizes(rows, chunk))


def test_longer_chunks_have_the_shapes_of_the_longest_that_is_captured() -> None:
    assert mixed_shapes(64, 8192) == mixed_shapes(64, 4096)


def test_a_quick_device_has_sizes_between() -> None:
    usual, quick = mixed_shapes(256, 2048), mixed_shapes(256, 2048, 520)
    between = [(each.decode, each.tokens) for each in quick if each not in usual]
    assert between == [(0, 128), (64, 128), (256, 128), (0, 256), (64, 256), (256, 256), (0, 512)]
    assert [each for each in quick if each in usual] == list(usual)
    assert len(mixed_shapes(256, 4096, 10_000)) == len(prompt_sizes(256, 4096)) == 23
    assert mixed_shapes(256, 50, 10_000) == mixed_shapes(256, 50)


def test_full_chunks_of_recurrent_layers_have_fewer_prompts() -> None:
    chunks = [
        {each.chunks for each in mixed_shapes(64, 512, has_states=has)} for has in (False, True)
    ]
    assert chunks == [{8, 16}, {8}]


@pytest.mark.parametrize(
    ("decode", "chunks", "tokens", "expected"),
    [
        (0, 1, 16, (0, 64)),
        (1, 1, 16, (16, 64)),
        (30, 1, 64, (64, 64)),
        (200, 2, 60, (256, 64)),
        # Padding to 320 lines would cost more than the launches.
        (70, 1, 20, None),
        (0, 4, 2048, (0, 2048)),
        (1, 4, 2048, (64, 2048)),
        (70, 4, 2048, (128, 2048)),
        (255, 1, 2048, (256, 2048)),
        (0, 4, 1500, None),
        (0, 16, 2048, (0, 2048)),
        (0, 17, 2048, None),
        (0, 1, 2049, None),
    ],
)
def test_the_smallest_shape_that_is_not_mostly_padding(
    decode: int, chunks: int, tokens: int, expected: tuple[int, int] | None
) -> None:
    wanted = StepShape(decode, chunks, tokens, tokens - chunks + 1, decode + chunks)
    found = fitting(mixed_shapes(256, 2048), wanted)
    assert (None if found is None else (found.decode, found.tokens)) == expected


@pytest.mark.parametrize(
    ("decode", "chunks", "tokens", "quick_lines", "expected"),
    [
        (70, 1, 20, 320, (256, 64)),
        (70, 1, 20, 319, None),
        (0, 1, 65, 400, (0, 128)),
        (249, 2, 738, 1280, (256, 1024)),
        (249, 2, 738, 1279, None),
        (0, 1, 1500, 2000, None),
        (0, 1, 1500, 2048, (0, 2048)),
    ],
)
def test_a_quick_shape_serves_whatever_it_holds(
    decode: int, chunks: int, tokens: int, quick_lines: int, expected: tuple[int, int] | None
) -> None:
    wanted = StepShape(decode, chunks, tokens, tokens - chunks + 1, decode + chunks)
    found = fitting(mixed_shapes(256, 2048, quick_lines), wanted, quick_lines)
    assert (None if found is None else (found.decode, found.tokens)) == expected
