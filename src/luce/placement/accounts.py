"""Who keeps the books of device memory, as the coordinator sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Accounts(Protocol):
    """Told of each move of a model that changes what is promised; see `placement.ledger`."""

    def reserve(self, model: str) -> None:
        """It may load: its planned bytes are taken from now on."""

    def settle(self, model: str, charge: Mapping[str, int]) -> None:
        """It is resident and takes this much; empty: as planned."""

    def unload(self, model: str) -> None:
        """It begins to give its memory back."""

    def keep(self, model: str, retained_bytes: int | None) -> None:
        """It is not resident any more and keeps so much; None: not even its process."""

    def reopen(self, model: str) -> None:
        """It gave nothing back after all."""

    def cancel(self, model: str) -> None:
        """Its load came to nothing; it holds what it held before."""

    def devices(self) -> Sequence[Mapping[str, Any]]:
        """Each pool with its bytes: total, free, external, pending, returning, margin, avail, and
        what each model was planned to take and holds."""


class NoAccounts:
    """Where devices are shared by turns, bytes are found out by the load itself."""

    def reserve(self, model: str) -> None:
        """Nothing is booked."""

    def settle(self, model: str, charge: Mapping[str, int]) -> None:
        """Nothing is booked."""

    def unload(self, model: str) -> None:
        """Nothing is booked."""

    def keep(self, model: str, retained_bytes: int | None) -> None:
        """Nothing is booked."""

    def reopen(self, model: str) -> None:
        """Nothing is booked."""

    def cancel(self, model: str) -> None:
        """Nothing is booked."""

    def devices(self) -> Sequence[Mapping[str, Any]]:
        """None are known."""
        return ()
