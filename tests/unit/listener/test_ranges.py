from __future__ import annotations

import pytest

from luce.errors import InvalidRequest
from luce.listener.dialects.openai_wire import ChatRequest
from luce.listener.dialects.ranges import check_ranges, count32, seed64, top_k32


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.0),
        ("temperature", 100.0),
        ("top_p", 1.0),
        ("top_p", 1e-9),
        ("top_k", -1),
        ("top_k", 10**400),
        ("min_p", 1.0),
        ("presence_penalty", -2.0),
        ("repetition_penalty", 0.01),
        ("rep_window", 2**64),
        ("max_tokens", 10**400),
        ("seed", -(2**63)),
        ("seed", 2**64 - 1),
    ],
)
def test_inside(field: str, value: float) -> None:
    check_ranges(ChatRequest(messages=[], **{field: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1e-9),
        ("temperature", 100.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_k", -2),
        ("top_k", -(10**400)),
        ("frequency_penalty", 2.01),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 100.1),
        ("rep_pen", 1e300),
        ("rep_window", -1),
        ("max_tokens", 0),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
    ],
)
def test_outside(field: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field} must be ") as caught:
        check_ranges(ChatRequest(messages=[], **{field: value}))  # type: ignore[arg-type]
    assert caught.value.param == field


def test_message_names_both_ends() -> None:
    with pytest.raises(InvalidRequest, match="greater than 0 and at most 1, not 2"):
        check_ranges(ChatRequest(messages=[], top_p=2.0))


def test_message_names_large_ends_exactly() -> None:
    said = (
        "at least -9223372036854775808 and at most 18446744073709551615, not 18446744073709551616."
    )
    with pytest.raises(InvalidRequest, match=f"seed must be {said}"):
        check_ranges(ChatRequest(messages=[], seed=2**64))


def test_a_number_as_long_as_a_page_is_not_repeated() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_ranges(ChatRequest(messages=[], top_k=-(10**400)))
    assert caught.value.message == "top_k must be at least -1, not -10000000000000000000000…."


def test_seed_maps_to_64_bits() -> None:
    assert [seed64(s) for s in (None, 0, 5, -1, -(2**63), 2**64 - 1)] == [
        None,
        0,
        5,
        2**64 - 1,
        2**63,
        2**64 - 1,
    ]


def test_top_k() -> None:
    assert [top_k32(k) for k in (None, -1, 0, 40, 10**30)] == [None, 0, 0, 40, 2**31 - 1]


def test_counts_of_tokens() -> None:
    assert [count32(n) for n in (0, 256, 2**64)] == [0, 256, 2**31 - 1]
