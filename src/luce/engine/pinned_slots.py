"""Small copies between host and device by kernels, which follow others at once.

The device's own copies of a few kilobytes take as long as they wait for kernels before and are
waited for behind: some 5 us each way, twice a step. Pinned memory is the device's to read and
write, so a kernel copies as well; only nobody but these slots knows until when it is in use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from luce.engine.device import begin_readback, upload_into
from luce.engine.lent_memory import seen_by

_log = logging.getLogger(__name__)

_SLOTS = 8
"""Two for each step under way, and some more, so that none is waited for."""
_MOST = 4096
"""Numbers of a copy; of more, the device's own takes less."""


class _Slot:
    """Pinned memory, and what was begun with it last."""

    def __init__(self, device: torch.device) -> None:
        self._pinned = torch.zeros(_MOST, dtype=torch.int32, pin_memory=True)
        self.numbers: npt.NDArray[np.int32] = self._pinned.numpy()
        self.mapped = seen_by(self._pinned, device)
        self._done = torch.Event(device)
        self.finish: Callable[[], object] = tuple

    def begun(self) -> None:
        """The device was told to read or write it."""
        self._done.record()

    def wait(self) -> None:
        """Until the device is done with it."""
        self._done.synchronize()


class PinnedSlots:
    """For the numbers that go to each step, and the tokens that come from it.

    Args:
        device: where steps run; on a CPU, and where kernels cannot reach pinned memory, copies
            are the usual ones.
    """

    def __init__(self, device: torch.device) -> None:
        self._slots: list[_Slot] = []
        self._next = 0
        if device.type == "cpu":
            return
        try:
            self._slots = [_Slot(device) for _ in range(_SLOTS)]
            self._try(device)
        except (RuntimeError, TypeError, AttributeError) as error:
            self._slots = []
            _log.warning("kernels do not copy pinned memory", extra={"reason": str(error)})

    def send(self, values: npt.NDArray[np.int32], target: torch.Tensor) -> None:
        """Put contiguous i32 numbers into a tensor of as many, in the stream's order."""
        if not self._slots or values.size > _MOST:
            upload_into(target, values)
            return
        slot = self._take()
        slot.numbers[: values.size] = values.ravel()
        torch.add(slot.mapped[: values.size].view(target.shape), 0, out=target)
        slot.begun()

    def begin_read(self, values: torch.Tensor) -> Callable[[], list[int]]:
        """As `device.begin_readback`, of i32 [n]."""
        count = values.numel()
        if not self._slots or count > _MOST or values.dtype != torch.int32:
            return begin_readback(values)
        slot = self._take()
        torch.add(values, 0, out=slot.mapped[:count])
        slot.begun()
        taken: list[list[int]] = []

        def read() -> list[int]:
            if not taken:
                slot.wait()
                taken.append(slot.numbers[:count].tolist())
            return taken[0]

        slot.finish = read
        return read

    def _take(self) -> _Slot:
        """The one that was begun first, once it is done and what came by it is kept."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % _SLOTS
        slot.finish()
        slot.finish = slot.wait
        return slot

    def _try(self, device: torch.device) -> None:
        """Send numbers there and back.

        Raises:
            RuntimeError: they do not come back.
        """
        numbers = np.arange(7, 7 + _MOST, dtype=np.int32)
        target = torch.zeros(_MOST, dtype=torch.int32, device=device)
        self.send(numbers, target)
        if self.begin_read(target)() != numbers.tolist():
            raise RuntimeError("other numbers came back than were sent")
