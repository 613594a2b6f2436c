from __future__ import annotations

from luce.routing.drain_rate import DrainRate


def test_without_a_measurement_a_second() -> None:
    rate = DrainRate()
    assert rate.retry_after_s(100.0, num_ahead=50) == 1
    rate.ended(100.0)
    assert rate.retry_after_s(200.0, num_ahead=50) == 1


def test_from_the_measured_rate() -> None:
    rate = DrainRate()
    for second in (0, 2, 4, 6):
        rate.ended(float(second))
    assert rate.retry_after_s(6.0, num_ahead=3) == 6
    assert rate.retry_after_s(6.0, num_ahead=1) == 2


def test_a_server_that_stands_still_gives_longer_answers() -> None:
    rate = DrainRate()
    rate.ended(0.0)
    rate.ended(1.0)
    assert rate.retry_after_s(10.0, num_ahead=2) == 20


def test_bounds() -> None:
    rate = DrainRate()
    for tick in range(100):
        rate.ended(tick / 1000)
    assert rate.retry_after_s(0.1, num_ahead=1) == 1
    assert rate.retry_after_s(1e6, num_ahead=30) == 60
