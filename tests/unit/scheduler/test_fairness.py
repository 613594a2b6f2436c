"""deal: quanta, rotation, and no token lost or invented."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from luce.scheduler.fairness import Claim, deal


def test_equal_claims_share_equally() -> None:
    claims = [Claim(order, 1000) for order in range(4)]
    assert deal(claims, 512, 128, -1).grants == {0: 128, 1: 128, 2: 128, 3: 128}


def test_a_lone_claim_gets_the_whole_budget() -> None:
    assert deal([Claim(3, 1000)], 512, 128, 7).grants == {3: 512}


def test_what_a_short_claim_leaves_goes_to_the_long_one() -> None:
    claims = [Claim(0, 1000), Claim(1, 10)]
    assert deal(claims, 512, 128, -1).grants == {0: 502, 1: 10}


def test_the_start_rotates_when_the_budget_is_smaller_than_a_round() -> None:
    claims = [Claim(order, 1000) for order in (2, 5, 9)]
    last_order = -1
    served = []
    for _ in range(6):
        dealt = deal(claims, 8, 8, last_order)
        served += list(dealt.grants)
        last_order = dealt.last_order
    assert served == [2, 5, 9, 2, 5, 9]


def test_a_turn_cut_short_by_the_budget_counts_as_a_turn() -> None:
    claims = [Claim(0, 100), Claim(1, 100)]
    dealt = deal(claims, 12, 8, -1)
    assert dealt.grants == {0: 8, 1: 4}
    assert deal(claims, 12, 8, dealt.last_order).grants == {0: 8, 1: 4}


@given(
    sizes=st.lists(st.integers(1, 50), max_size=6),
    budget=st.integers(1, 100),
    quantum=st.integers(1, 40),
    last_order=st.integers(-1, 6),
)
def test_deals_exactly_what_there_is(
    sizes: list[int], budget: int, quantum: int, last_order: int
) -> None:
    claims = [Claim(order, size) for order, size in enumerate(sizes)]
    grants = deal(claims, budget, quantum, last_order).grants
    assert sum(grants.values()) == min(budget, sum(sizes))
    assert all(0 < grants[order] <= sizes[order] for order in grants)


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6), quantum=st.integers(1, 10))
def test_nobody_waits_longer_than_a_round(sizes: list[int], quantum: int) -> None:
    left = dict(enumerate(sizes))
    last_order, waited = -1, dict.fromkeys(left, 0)
    while left:
        dealt = deal([Claim(*pair) for pair in left.items()], 1, quantum, last_order)
        last_order = dealt.last_order
        for order in list(left):
            waited[order] = 0 if order in dealt.grants else waited[order] + 1
            assert waited[order] < len(sizes)
            left[order] -= dealt.grants.get(order, 0)
            if left[order] == 0:
                del left[order]
