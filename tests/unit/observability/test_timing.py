from __future__ import annotations

import pytest

from luce.observability.timing import RequestTimings


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now

    def wait_ms(self, milliseconds: int) -> None:
        self.now += milliseconds * 1_000_000


def test_figures() -> None:
    clock = Clock()
    timings = RequestTimings(clock_ns=clock)
    clock.wait_ms(5)
    timings.admitted_ns = clock()
    clock.wait_ms(20)
    timings.token()
    for _ in range(4):
        clock.wait_ms(10)
        timings.token()
    assert timings.queue_ms == 5
    assert timings.ttft_ms == 25
    assert timings.tokens_per_s(5) == pytest.approx(100)
    clock.wait_ms(35)
    assert timings.total_ms == 100


def test_what_has_not_happened_has_no_figure() -> None:
    clock = Clock()
    timings = RequestTimings(clock_ns=clock)
    assert timings.queue_ms is None
    assert timings.ttft_ms is None
    assert timings.tokens_per_s(0) is None
    timings.token()
    assert timings.tokens_per_s(1) is None
    assert timings.tokens_per_s(2) is None


def test_prefill_and_decode_are_the_time_before_and_after_the_first_output() -> None:
    clock = Clock()
    timings = RequestTimings(clock_ns=clock)
    assert timings.prefill_ms is None
    clock.wait_ms(7)
    timings.admitted_ns = clock()
    clock.wait_ms(30)
    timings.token()
    assert (timings.prefill_ms, timings.decode_ms) == (30, 0)
    clock.wait_ms(50)
    timings.token()
    assert (timings.prefill_ms, timings.decode_ms) == (30, 50)
