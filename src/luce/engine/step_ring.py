"""Captured decode steps take their lanes from a ring of memory and leave their tokens in another.

A graph is the same each time, so whose turn it is the device counts itself; the host counts along.
Copies in and out run beside the steps (`docs/lab/gpu.md`): no step waits for more than a mark that
its lanes have come, which they have by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.device import upload_into

SLOTS = 8
"""More than there are steps under way, so that none is waited for."""


@dataclass(frozen=True, slots=True)
class RingPlace:
    """What a step's kernels read and write.

    Attributes:
        lanes: i32 [SLOTS, n, 4], see `device_inputs.decode_lanes`.
        tokens: i32 [SLOTS, n]: as sampled.
        state: i32 [2]: the slot whose turn it is, and that of the step under way.
    """

    lanes: torch.Tensor
    tokens: torch.Tensor
    state: torch.Tensor


class StepRing:
    """Rings of a device.

    Args:
        most: lanes of the largest step.
        padding: a lane of nobody.
        device: where steps run.

    Attributes:
        place: for the kernels.
    """

    def __init__(self, most: int, padding: tuple[int, int, int, int], device: torch.device) -> None:
        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        self._padding = np.array(padding, dtype=np.int32)
        self._next = 0
        self.place = RingPlace(zeros(SLOTS, most, 4), zeros(SLOTS, most), zeros(2))
        self._ways = None if device.type == "cpu" else _Ways(self.place, device)
        self._finish: list[Callable[[], object]] = [tuple] * SLOTS
        """Keeps the tokens of the step that used the slot last."""

    def restart(self) -> None:
        """All lanes are padding, and the first slot's turn is next. No step may be under way."""
        for finish in self._finish:
            finish()
        lanes = np.broadcast_to(self._padding, self.place.lanes.shape)
        upload_into(self.place.lanes, np.ascontiguousarray(lanes))
        upload_into(self.place.state, np.zeros(2, dtype=np.int32))
        if self._ways is not None:
            self._ways.wait()
        self._next = 0

    def send(self, lanes: npt.NDArray[np.int32]) -> None:
        """Put the lanes of the next step, [n, 4], where it will look for them."""
        # It is another's until that one's tokens are kept.
        self._finish[self._next]()
        if self._ways is None:
            upload_into(self.place.lanes[self._next, : len(lanes)], lanes)
        else:
            self._ways.bring(self._next, lanes)

    def begin_read(self, count: int) -> Callable[[], list[int]]:
        """Once a step was launched: a function that waits for its first tokens."""
        at, self._next = self._next, (self._next + 1) % SLOTS
        if self._ways is None:
            # Taken at once: a later step may leave its own there.
            tokens: list[int] = self.place.tokens[at, :count].tolist()
            return lambda: tokens
        wait = self._ways.fetch(at, count)
        taken: list[list[int]] = []

        def read() -> list[int]:
            if not taken:
                taken.append(wait())
            return taken[0]

        self._finish[at] = read
        return read


class _Ways:
    """Copies of lanes and tokens beside the steps.

    Args:
        place: between which and the host.
        device: its.
    """

    def __init__(self, place: RingPlace, device: torch.device) -> None:
        def pinned(like: torch.Tensor) -> torch.Tensor:
            return torch.zeros(like.shape, dtype=like.dtype, pin_memory=True)

        self._device = device
        self._place = place
        self._lanes, self._tokens = pinned(place.lanes), pinned(place.tokens)
        self._numbers, self._ids = self._lanes.numpy(), self._tokens.numpy()
        self._into, self._out = torch.Stream(device), torch.Stream(device)
        self._there, self._done, self._back = (
            [torch.Event(device) for _ in range(SLOTS)] for _ in range(3)
        )

    def bring(self, at: int, lanes: npt.NDArray[np.int32]) -> None:
        """Copy to a slot; steps launched from now on wait for that."""
        count = len(lanes)
        self._numbers[at, :count] = lanes
        with self._into:
            self._place.lanes[at, :count].copy_(self._lanes[at, :count], non_blocking=True)
            self._there[at].record(self._into)
        torch.accelerator.current_stream(self._device).wait_event(self._there[at])

    def fetch(self, at: int, count: int) -> Callable[[], list[int]]:
        """Copy from a slot once the steps launched so far are done; a function that waits."""
        self._done[at].record(torch.accelerator.current_stream(self._device))
        self._out.wait_event(self._done[at])
        with self._out:
            self._tokens[at, :count].copy_(self._place.tokens[at, :count], non_blocking=True)
            self._back[at].record(self._out)

        def wait() -> list[int]:
            self._back[at].synchronize()
            ids: list[int] = self._ids[at, :count].tolist()
            return ids

        return wait

    def wait(self) -> None:
        """Until the device has done all it was told."""
        torch.accelerator.synchronize(self._device)
