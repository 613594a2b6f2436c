"""A hold on one model's capacity, from before submission until nothing is left of the request."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Literal

Release = Literal["handled", "busy", "unused"]
"""How a reservation ended.

handled: the model worked on the request, or failed it: capacity came back.
busy: the worker had no room. unused: the request never reached the worker.
"""


class ReservationState(enum.Enum):
    """Life of a reservation; see the table of moves in `Reservation`."""

    HELD = "held"
    SUBMITTED = "submitted"
    ADMITTED = "admitted"
    RETIRED = "retired"
    RELEASED = "released"


class Reservation:
    """One unit of one model's capacity; given back exactly once.

    HELD → SUBMITTED → ADMITTED → RETIRED → RELEASED. From HELD and SUBMITTED it may be
    released at once (`unused`, `refused`, `failed`). After admission it waits for two things
    in any order: the worker's `retired` and `drained`, the end of the client's output.

    Attributes:
        request_id: whose it is.
        model: what is held.
        state: where it is in its life.
    """

    __slots__ = ("_drained", "_on_admit", "_on_release", "model", "request_id", "state")

    def __init__(
        self,
        request_id: str,
        model: str,
        on_admit: Callable[[Reservation], None],
        on_release: Callable[[Reservation, Release], None],
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.state = ReservationState.HELD
        self._on_admit = on_admit
        self._on_release = on_release
        self._drained = False

    def submitted(self) -> None:
        """The request is on its way to the worker."""
        self._move(ReservationState.SUBMITTED, ReservationState.HELD)

    def admitted(self) -> None:
        """The worker took it: the request stays on this model."""
        self._move(ReservationState.ADMITTED, ReservationState.SUBMITTED)
        self._on_admit(self)

    def unused(self) -> None:
        """The request will not go to the worker after all."""
        self._release("unused", ReservationState.HELD)

    def refused(self) -> None:
        """The worker had no room; nothing was taken, so nobody is woken."""
        self._release("busy", ReservationState.SUBMITTED)

    def failed(self) -> None:
        """The worker answered with an end, not with an admission, or it died."""
        self._release("handled", ReservationState.SUBMITTED)

    def retired(self) -> None:
        """The worker holds nothing of the request any more."""
        self._move(ReservationState.RETIRED, ReservationState.ADMITTED)
        if self._drained:
            self._release("handled", ReservationState.RETIRED)

    def drained(self) -> None:
        """The client has all its output, or is gone. Saying it twice is harmless."""
        if self._drained:
            return
        self._drained = True
        if self.state is ReservationState.RETIRED:
            self._release("handled", ReservationState.RETIRED)

    def _release(self, how: Release, source: ReservationState) -> None:
        self._move(ReservationState.RELEASED, source)
        self._on_release(self, how)

    def _move(self, target: ReservationState, source: ReservationState) -> None:
        if self.state is not source:
            raise RuntimeError(
                f"reservation of {self.request_id} on {self.model} cannot go from "
                f"{self.state.value} to {target.value}"
            )
        self.state = target
