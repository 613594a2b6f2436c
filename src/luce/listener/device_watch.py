"""What is free on devices now: asked in a thread, since drivers can be slow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from luce.placement.devices import Probe
from luce.placement.memory_return import MemoryReturn
from luce.placement.samples import Samples
from luce.workers.clock import Clock, SystemClock

PROBE_TIMEOUT_S = 2.0
_POLL_S = 0.05
_STABLE_SHARE = 0.2
"""Of the patience: memory that has not changed for that long has come back as far as it will."""


class DeviceWatch:
    """Asks a probe. Without one, or of devices that it does not know, nothing is free or full.

    Attributes:
        samples: the latest answers.
    """

    def __init__(
        self,
        devices: Mapping[str, tuple[str, ...]],
        probe: Probe | None = None,
        samples: Samples | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Args:
        devices: UUIDs each model computes on.
        probe: who knows.
        samples: where answers are kept.
        clock: between two looks.
        """
        self.samples = samples or Samples()
        self._devices = devices
        self._probe = probe
        self._clock = clock or SystemClock()
        self._expected: dict[str, int] = {}

    def expect(self, model: str, nbytes: int) -> None:
        """What this model takes on its first device, and what should come back when it goes."""
        self._expected[model] = nbytes

    async def look(self, devices: tuple[str, ...]) -> None:
        """Ask about these devices; the answers are in `samples`."""
        epoch = self.samples.epoch
        for device in devices:
            free = None
            if self._probe is not None:
                free = await self._ask(self._probe, device)
            self.samples.put(device, free, epoch)

    async def _ask(self, probe: Probe, device: str) -> int | None:
        """A driver that hangs must not hold up what does not depend on it."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                sample = await asyncio.to_thread(probe.sample, device)
        except TimeoutError:
            return None
        return sample.free_bytes if sample is not None else None

    async def free(self, model: str) -> dict[str, int | None]:
        """Free bytes of each device of a model."""
        devices = self._devices[model]
        await self.look(devices)
        return {device: self.samples.free(device) for device in devices}

    async def comes_back(
        self, model: str, before: Mapping[str, int | None], retained_bytes: int, patience_s: float
    ) -> None:
        """Wait until what a model gave back can be seen; never longer than `patience_s`.

        Args:
            model: which.
            before: free bytes of its devices before it did.
            retained_bytes: what it kept of its first device.
            patience_s: see `MemoryReturn`.
        """
        expected = max(0, self._expected.get(model, 0) - retained_bytes)
        returns = [
            (
                device,
                MemoryReturn(
                    free_before=free,
                    expected=expected if place == 0 else 0,
                    began_s=self._now_s(),
                    patience_s=patience_s,
                    stable_s=patience_s * _STABLE_SHARE,
                ),
            )
            for place, (device, free) in enumerate(before.items())
            if free is not None
        ]
        while returns:
            await self.look(tuple(device for device, _ in returns))
            now_s = self._now_s()
            returns = [
                (device, back)
                for device, back in returns
                if not back.is_over(self.samples.free(device), now_s)
            ]
            if returns:
                await self._clock.sleep(_POLL_S)

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9
