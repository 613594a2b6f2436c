"""ReasoningWatch: when it forces, what it forces, and when it leaves the model alone."""

from __future__ import annotations

import pytest

from luce.protocol.sampling import ReasoningBudget, ReasoningTexts
from luce.scheduler.reasoning import MAX_PERIOD, MIN_PERIOD, ReasoningWatch

OPEN, HINT = (90,), (70, 71)
CLOSE = (80, 81, 82)


def watch(max_tokens: int = 3, *, starts_open: bool = True, **rest: object) -> ReasoningWatch:
    fields = {"open_ids": OPEN, "close_ids": CLOSE, "forced_ids": (*HINT, *CLOSE), **rest}
    return ReasoningWatch(
        ReasoningBudget(max_tokens=max_tokens, starts_open=starts_open, **fields)  # type: ignore[arg-type]
    )


def run(target: ReasoningWatch, sampled: list[int]) -> list[int]:
    """The output of a model that would write `sampled` where nothing is forced."""
    output, own = [], iter(sampled)
    while True:
        forced = target.forced_token()
        token_id = next(own, None) if forced is None else forced
        if token_id is None:
            return output
        output.append(token_id)
        target.observe(token_id)


def test_open_reasoning_is_closed_when_the_budget_is_used_up() -> None:
    assert run(watch(3), [1, 2, 3, 4, 5]) == [1, 2, 3, *HINT, *CLOSE, 4, 5]


def test_a_budget_of_nothing_closes_at_once() -> None:
    assert run(watch(0), [1, 2]) == [*HINT, *CLOSE, 1, 2]


def test_it_is_closed_once_even_if_it_opens_again() -> None:
    found = run(watch(2), [1, 2, 3, *OPEN, 4, 5, 6])
    assert found == [1, 2, *HINT, *CLOSE, 3, *OPEN, 4, 5, 6]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_model_that_closed_by_itself_is_left_alone(before: int) -> None:
    sampled = [*range(before), *CLOSE, 5, *OPEN, 6, 7, 8]
    assert run(watch(before + len(CLOSE)), sampled) == sampled


def test_a_close_that_is_being_written_is_finished_and_not_doubled() -> None:
    for written in (1, 2):
        sampled = [1, 2, *CLOSE[:written], 5]
        assert run(watch(2 + written), sampled) == [1, 2, *CLOSE, 5]


def test_what_only_resembles_a_close_counts_for_nothing() -> None:
    sampled = [CLOSE[0], CLOSE[2], 3]
    assert run(watch(3), sampled) == [*sampled, *HINT, *CLOSE]


def test_reasoning_that_is_not_open_is_not_closed() -> None:
    sampled = [1, 2, 3, 4, 5, *CLOSE, 6]
    assert run(watch(3, starts_open=False), sampled) == sampled


def test_reasoning_that_opens_is_closed_after_the_budget() -> None:
    found = run(watch(4, starts_open=False), [*OPEN, 1, 2, 3, 4])
    assert found == [*OPEN, 1, 2, 3, *HINT, *CLOSE, 4]


def test_reasoning_that_opens_too_late_is_closed_at_once() -> None:
    found = run(watch(2, starts_open=False), [1, 2, 3, *OPEN, 4])
    assert found == [1, 2, 3, *OPEN, *HINT, *CLOSE, 4]


def test_opening_tokens_do_not_count_as_part_of_a_close() -> None:
    target = watch(3, starts_open=False, open_ids=(80, 81), close_ids=(81, 82), forced_ids=(81, 82))
    assert run(target, [80, 81, 82, 5]) == [80, 81, 82, 81, 82, 5]


def test_forced_tokens_do_not_count_twice_as_a_close_of_their_own() -> None:
    target = watch(1, close_ids=(7,), forced_ids=(7, 8, 7))
    assert run(target, [1, 2]) == [1, 7, 8, 7, 2]


@pytest.mark.parametrize(
    ("rest", "sampled"),
    [({"close_ids": (), "forced_ids": ()}, [1, 2, 3]), ({"forced_ids": ()}, [1, 2, 3])],
)
def test_a_budget_that_cannot_close_does_nothing(
    rest: dict[str, object], sampled: list[int]
) -> None:
    assert run(watch(1, **rest), sampled) == sampled


def test_asking_twice_changes_nothing() -> None:
    target = watch(0)
    assert [target.forced_token() for _ in range(3)] == [HINT[0]] * 3
    target.observe(HINT[0])
    assert target.forced_token() == HINT[1]


def test_the_past_is_needed_from_the_budget_on_and_until_it_is_closed() -> None:
    target = watch(2)
    assert [target.needs_past(index) for index in (0, 1, 2, 9)] == [False, False, True, True]
    run(target, [1, 2])
    assert not target.needs_past(9)
    natural = watch(9)
    run(natural, [*CLOSE])
    assert not natural.needs_past(9)


# --- tags that are plain text ------------------------------------------------------------

PIECES = {
    10: b"</",
    11: b"think",
    12: b">",
    13: b"></",
    14: b"<",
    15: b">\n",
    16: b"/",
    17: b"</think>",
    18: b" ",
    19: b"think><",
}
HALVES = tuple((200 + n,) for n in range(1, len("</think>")))


def text_watch(max_tokens: int, *, starts_open: bool = True, first: bool = False) -> ReasoningWatch:
    texts = ReasoningTexts(b"<think>", b"</think>", PIECES, HALVES, comes_first=first)
    return watch(
        max_tokens,
        starts_open=starts_open,
        open_ids=(14, 11, 12),
        close_ids=(10, 11, 12),
        forced_ids=(70, 10, 11, 12),
        texts=texts,
    )


@pytest.mark.parametrize(
    "close", [[10, 11, 12], [13, 11, 12], [10, 11, 15], [17], [14, 16, 11, 12], [14, 10, 11, 15]]
)
def test_a_close_is_seen_however_it_is_cut_into_tokens(close: list[int]) -> None:
    sampled = [1, *close, 2, 3, 4]
    assert run(text_watch(1 + len(close)), sampled) == sampled


@pytest.mark.parametrize(
    ("written", "rest"),
    [([10], 2), ([13], 2), ([14], 1), ([14, 16], 2), ([10, 11], 7), ([14, 10], 2), ([12], 0)],
)
def test_whatever_is_written_of_it_is_finished(written: list[int], rest: int) -> None:
    forced = HALVES[rest - 1] if rest else (70, 10, 11, 12)
    assert run(text_watch(1 + len(written)), [1, *written, 2, 3]) == [1, *written, *forced, 2, 3]


def test_what_only_resembles_a_close_in_bytes_counts_for_nothing() -> None:
    sampled = [10, 1, 11, 12]
    assert run(text_watch(4), sampled) == [*sampled, 70, 10, 11, 12]


@pytest.mark.parametrize("opening", [[14, 11, 12], [14, 11, 15], [18, 14, 11, 12]])
def test_an_opening_is_seen_however_it_is_cut(opening: list[int]) -> None:
    for first in (False, True):
        target = text_watch(len(opening) + 1, starts_open=False, first=first)
        assert run(target, [*opening, 1, 2]) == [*opening, 1, 70, 10, 11, 12, 2]


def test_one_token_may_open_and_begin_the_close() -> None:
    target = text_watch(2, starts_open=False)
    assert run(target, [14, 19, 2]) == [14, 19, *HALVES[0], 2]


@pytest.mark.parametrize("before", [[1], [12], [14, 1], [18, 1], [14, 14], [14, 18]])
def test_where_reasoning_comes_first_a_later_opening_is_text(before: list[int]) -> None:
    sampled = [*before, 14, 11, 12, 1, 2, 3, 4]
    assert run(text_watch(3, starts_open=False, first=True), sampled) == sampled
    closed = run(text_watch(3, starts_open=False), sampled)
    assert closed != sampled


def test_a_tag_that_repeats_itself_is_found() -> None:
    target = watch(6, close_ids=(5, 5, 6, 5, 5, 7), forced_ids=(9,))
    sampled = [5, 5, 6, 5, 5, 6, 5, 5, 7, 1, 2]
    assert run(target, sampled[:6])[6:] == [5, 5, 7]
    assert run(watch(9, close_ids=(5, 5, 6, 5, 5, 7), forced_ids=(9,)), sampled) == sampled


# --- stuck -----------------------------------------------------------------------------


def closed() -> ReasoningWatch:
    target = watch(0)
    run(target, [])
    return target


def first_stuck(target: ReasoningWatch, output: list[int]) -> int | None:
    """How many tokens it takes until the watch says so."""
    for count, token_id in enumerate(output, start=1):
        target.observe(token_id)
        if target.is_stuck:
            return count
    return None


@pytest.mark.parametrize("period", [MIN_PERIOD, 33, MAX_PERIOD])
def test_a_passage_that_comes_twice_in_a_row_is_stuck(period: int) -> None:
    passage = [1000 + place for place in range(period)]
    assert first_stuck(closed(), [1, 2, 3, *passage, *passage, 4]) == 3 + 2 * period


@pytest.mark.parametrize("period", [MIN_PERIOD - 1, MAX_PERIOD + 1])
def test_shorter_and_longer_ones_are_not(period: int) -> None:
    passage = [1000 + place for place in range(period)]
    assert first_stuck(closed(), [*passage, *passage]) is None


def test_a_repetition_with_something_between_is_not() -> None:
    passage = list(range(1000, 1040))
    assert first_stuck(closed(), [*passage, 5, *passage]) is None


def test_the_close_itself_is_no_part_of_a_passage() -> None:
    passage = [*HINT, *CLOSE, *range(1000, 1010)]
    assert first_stuck(closed(), [*range(1000, 1010), *passage]) is None


def test_repetition_without_a_forced_close_is_the_models_own_affair() -> None:
    passage = list(range(1000, 1020))
    assert first_stuck(watch(900), [*passage, *passage]) is None
    natural = watch(900)
    run(natural, [*CLOSE])
    assert first_stuck(natural, [*passage, *passage]) is None
