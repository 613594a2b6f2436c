"""What is free on devices now: asked in threads, since drivers can be slow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from luce.listener.driver_calls import DriverCalls
from luce.placement.devices import Attribution, Probe
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
        at_once: Collection[str] = (),
    ) -> None:
        """Args:
        devices: UUIDs each model computes on.
        probe: who knows.
        samples: where answers are kept.
        clock: between two looks.
        at_once: devices whose memory is free as soon as it is given back.
        """
        self._attribution: Attribution | None = None
        self._attributed: frozenset[str] = frozenset()
        self._pids: Callable[[], Mapping[str, int]] = dict
        self.samples = samples or Samples()
        self._devices = devices
        self._at_once = frozenset(at_once)
        self._probe = probe
        self._clock = clock or SystemClock()
        self._expected: dict[str, int] = {}
        self._calls = DriverCalls()

    def attribute(
        self,
        attribution: Attribution,
        pids: Callable[[], Mapping[str, int]],
        devices: Collection[str],
    ) -> None:
        """Ask as well how much of these devices each model's process holds.

        Args:
            attribution: who knows.
            pids: of the models that have a process now.
            devices: UUIDs of those whose bytes are all that a process may be charged with.
        """
        self._attribution, self._pids, self._attributed = attribution, pids, frozenset(devices)

    def expect(self, model: str, nbytes: int) -> None:
        """What this model takes on its first device, and what should come back when it goes."""
        self._expected[model] = nbytes

    async def look(self, devices: tuple[str, ...]) -> None:
        """Ask about these devices; the answers are in `samples`."""
        epoch = self.samples.epoch
        for device in devices:
            free: int | None = None
            shares: dict[str, int] = {}
            if self._probe is not None:
                free, shares = await self._ask(self._probe, device)
            self.samples.put(device, free, epoch, shares)

    async def _ask(self, probe: Probe, device: str) -> tuple[int | None, dict[str, int]]:
        """A driver that hangs must not hold up what does not depend on it."""
        work = partial(self._sample, probe, device, self._pids())
        return await self._calls.call(device, work, PROBE_TIMEOUT_S) or (None, {})

    def _sample(
        self, probe: Probe, device: str, pids: Mapping[str, int]
    ) -> tuple[int | None, dict[str, int]]:
        sample = probe.sample(device)
        if sample is None:
            return None, {}
        held: Mapping[int, int] = {}
        if self._attribution is not None and device in self._attributed:
            held = self._attribution.process_bytes(device, set(pids.values()))
        shares = {model: held[pid] for model, pid in pids.items() if pid in held}
        return sample.free_bytes, shares

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
            if free is not None and device not in self._at_once
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
