"""How long freed memory is waited for; rows A4.7, B21, B22."""

from __future__ import annotations

from luce.placement.memory_return import MemoryReturn


def watch(expected: int = 100) -> MemoryReturn:
    return MemoryReturn(
        free_before=50, expected=expected, began_s=0.0, patience_s=5.0, stable_s=1.0
    )


def test_most_of_it_is_enough() -> None:
    back = watch()
    assert not back.is_over(50, 0.0)
    assert not back.is_over(139, 0.1)
    assert back.is_over(140, 0.2)


def test_what_does_not_rise_any_more_is_all_there_is() -> None:
    back = watch()
    assert not back.is_over(60, 0.0)
    assert not back.is_over(90, 0.5)
    assert not back.is_over(90, 1.25)
    assert back.is_over(90, 1.5)


def test_it_ends_even_while_it_trickles() -> None:
    back = watch()
    samples = [(50 + n, n * 0.5) for n in range(11)]
    assert [back.is_over(*sample) for sample in samples] == [False] * 10 + [True]


def test_a_driver_that_says_nothing_is_not_waited_for() -> None:
    assert watch().is_over(None, 0.0)


def test_nothing_is_awaited_of_a_process_that_held_nothing() -> None:
    assert watch(expected=0).is_over(50, 0.0)
