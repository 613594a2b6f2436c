from __future__ import annotations

import pytest

from luce.routing.reservation import Release, Reservation, ReservationState


class Held:
    """A reservation and what its owner was told."""

    def __init__(self) -> None:
        self.admitted = 0
        self.releases: list[Release] = []
        self.reservation = Reservation(
            "r1", "m", self._admit, lambda _, how: self.releases.append(how)
        )

    def _admit(self, _: Reservation) -> None:
        self.admitted += 1


def test_released_after_retirement_and_output() -> None:
    held = Held()
    held.reservation.submitted()
    held.reservation.admitted()
    held.reservation.retired()
    assert held.releases == []
    held.reservation.drained()
    held.reservation.drained()
    assert held.releases == ["handled"]
    assert held.admitted == 1


def test_released_after_output_and_retirement() -> None:
    held = Held()
    held.reservation.submitted()
    held.reservation.admitted()
    held.reservation.drained()
    assert held.releases == []
    held.reservation.retired()
    assert held.releases == ["handled"]
    assert held.reservation.state is ReservationState.RELEASED


def test_other_ends() -> None:
    unused, refused, failed = Held(), Held(), Held()
    unused.reservation.unused()
    refused.reservation.submitted()
    refused.reservation.refused()
    failed.reservation.submitted()
    failed.reservation.failed()
    assert unused.releases == ["unused"]
    assert refused.releases == ["busy"]
    assert failed.releases == ["handled"]


@pytest.mark.parametrize(
    "moves",
    [
        ["admitted"],
        ["retired"],
        ["refused"],
        ["failed"],
        ["submitted", "submitted"],
        ["submitted", "unused"],
        ["submitted", "refused", "refused"],
        ["submitted", "admitted", "failed"],
        ["submitted", "admitted", "retired", "retired"],
        ["unused", "unused"],
    ],
)
def test_illegal_moves_are_our_bug(moves: list[str]) -> None:
    held = Held()
    for move in moves[:-1]:
        getattr(held.reservation, move)()
    before = list(held.releases)
    with pytest.raises(RuntimeError, match="r1 on m cannot go from"):
        getattr(held.reservation, moves[-1])()
    assert held.releases == before
