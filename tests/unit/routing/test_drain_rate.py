from __future__ import annotations

from luce.routing.drain_rate import DrainRate


def busy(since_s: float = 0.0) -> DrainRate:
    rate = DrainRate()
    rate.busy(since_s)
    return rate


def test_without_an_end_a_second() -> None:
    rate = busy()
    assert rate.retry_after_s(100.0, num_ahead=50) == 1


def test_from_the_measured_rate() -> None:
    rate = busy()
    for second in (2, 4, 6):
        rate.ended(float(second))
    assert rate.retry_after_s(6.0, num_ahead=3) == 6
    assert rate.retry_after_s(6.0, num_ahead=1) == 2


def test_part_of_a_second_is_a_second_more() -> None:
    rate = busy()
    rate.ended(0.7)
    assert rate.retry_after_s(0.7, num_ahead=3) == 3


def test_a_server_that_stands_still_gives_longer_answers() -> None:
    rate = busy()
    rate.ended(1.0)
    assert rate.retry_after_s(1.0, num_ahead=2) == 2
    assert rate.retry_after_s(10.0, num_ahead=2) == 20


def test_quiet_hours_do_not_count() -> None:
    rate = busy()
    rate.ended(2.0)
    rate.idle(2.0)
    rate.busy(3600.0)
    rate.busy(3601.0)
    assert rate.retry_after_s(3602.0, num_ahead=1) == 4
    rate.ended(3602.0)
    assert rate.retry_after_s(3602.0, num_ahead=3) == 6


def test_only_the_last_ends_count() -> None:
    rate = busy()
    for second in range(100):
        rate.ended(float(second))
    for tick in range(40):
        rate.ended(100 + tick / 10)
    assert rate.retry_after_s(103.9, num_ahead=19) == 2


def test_bounds() -> None:
    rate = busy()
    for tick in range(100):
        rate.ended(tick / 1000)
    assert rate.retry_after_s(0.1, num_ahead=1) == 1
    assert rate.retry_after_s(1e6, num_ahead=30) == 60
