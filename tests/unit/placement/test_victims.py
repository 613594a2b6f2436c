"""The smallest set that is enough, the longest unused first."""

from __future__ import annotations

from luce.placement.victims import Victim, choose


def victim(name: str, idle_s: float, reload_ms: int = 0, **frees: int) -> Victim:
    return Victim(name=name, idle_s=idle_s, reload_ms=reload_ms, frees=frees)


def names(chosen: tuple[Victim, ...] | None) -> list[str] | None:
    return None if chosen is None else [v.name for v in chosen]


def test_one_that_is_enough_goes_alone() -> None:
    candidates = [victim("old", 90, g=5), victim("older", 99, g=5), victim("new", 1, g=10)]
    assert names(choose(candidates, {"g": 10}, 0)) == ["new"]


def test_of_sets_of_one_size_the_oldest() -> None:
    candidates = [victim(n, idle, g=6) for n, idle in (("a", 1), ("b", 9), ("c", 5))]
    assert names(choose(candidates, {"g": 6}, 0)) == ["b"]
    assert names(choose(candidates, {"g": 12}, 0)) == ["b", "c"]


def test_ties_by_bytes_then_reload_then_name() -> None:
    assert names(choose([victim("a", 5, g=6), victim("b", 5, g=9)], {"g": 6}, 0)) == ["b"]
    cheap = [victim("a", 5, 200, g=6), victim("b", 5, 100, g=6)]
    assert names(choose(cheap, {"g": 6}, 0)) == ["b"]
    assert names(choose([victim("b", 5, g=6), victim("a", 5, g=6)], {"g": 6}, 0)) == ["a"]


def test_i6_no_bytes_where_they_are_missing_is_no_victim() -> None:
    candidates = [victim("elsewhere", 99, h=50), victim("here", 1, g=6)]
    assert names(choose(candidates, {"g": 6}, 0)) == ["here"]
    assert choose(candidates[:1], {"g": 6}, 0) is None


def test_by_number_alone_anybody() -> None:
    candidates = [victim("a", 1, g=6), victim("b", 9, h=6)]
    assert names(choose(candidates, {}, 1)) == ["b"]
    assert names(choose(candidates, {}, 2)) == ["b", "a"]
    asleep = Victim(name="s", idle_s=99, frees={"g": 1}, is_resident=False)
    assert names(choose([asleep, *candidates], {}, 1)) == ["b"]


def test_number_and_bytes_together() -> None:
    candidates = [victim("a", 9, h=6), victim("b", 1, g=6)]
    assert names(choose(candidates, {"g": 6}, 1)) == ["b"]
    assert names(choose(candidates, {"g": 6}, 2)) == ["a", "b"]


def test_i11_never_a_set_that_is_not_enough() -> None:
    assert choose([victim("a", 9, g=6), victim("b", 8, g=3)], {"g": 10}, 0) is None
    assert choose([], {"g": 1}, 0) is None


def test_many_are_chosen_in_order_without_the_needless() -> None:
    crowd = [victim(f"v{n:02}", 100 - n, g=1) for n in range(13)]
    big = victim("big", 50, g=20)
    assert names(choose([*crowd, big], {"g": 3}, 0)) == ["v00", "v01", "v02"]
    assert names(choose([*crowd, big], {"g": 20}, 0)) == ["big"]
