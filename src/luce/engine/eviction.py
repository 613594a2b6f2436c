"""What an evicted model keeps of its weights, from most to least, and how they come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

from luce.engine.assembly import Blueprint, BuiltModel, build_model
from luce.engine.device import Device, held_bytes, is_out_of_memory
from luce.engine.memory_driver import DriverError, MemoryDriver
from luce.engine.parked_weights import ParkedWeights
from luce.engine.placed_weights import PlacedWeights, place_weights
from luce.engine.weights import WeightReader
from luce.errors import ModelFileError, PlacementError
from luce.loaders.file_identity import FileIdentity
from luce.loaders.opening import open_checkpoint
from luce.sizing.host_memory import available_bytes
from luce.units import format_bytes

EvictionLevel = Literal["warm", "host", "cold"]
"""warm: its weights, on the device. host: its weights, in host memory. cold: nothing."""

_ORDER: tuple[EvictionLevel, ...] = ("warm", "host", "cold")


@dataclass(frozen=True, slots=True)
class Kept:
    """What an evicted model holds, in bytes.

    Attributes:
        device_bytes: on its device.
        host_bytes: weights in host memory.
    """

    device_bytes: int
    host_bytes: int


class HeldWeights:
    """A model's weights wherever they are.

    A CPU computes with weights in host memory, so there `host` keeps them where they lie; what it
    gives back is everything else.

    Args:
        built: the model.
        device: what it computes on.
        driver: gives weights a place that they come back to; None: they come back anywhere.

    Attributes:
        level: of the eviction; None while the model serves.
    """

    def __init__(
        self, built: BuiltModel, device: Device, driver: MemoryDriver | None = None
    ) -> None:
        self.level: EvictionLevel | None = None
        self._built: BuiltModel | None = built
        self._device = device
        self._driver = driver
        self._placed: PlacedWeights | None = None
        self._parked: ParkedWeights | PlacedWeights | None = None
        self._place()

    def _place(self) -> None:
        if self._driver is not None:
            self._placed = place_weights([self._built], self._device, self._driver)

    @property
    def placing_driver(self) -> MemoryDriver | None:
        """The driver, if the weights have a place of their own."""
        return None if self._placed is None else self._driver

    @property
    def built(self) -> BuiltModel:
        """The model; there must be one."""
        assert self._built is not None, "the weights were dropped"
        return self._built

    @property
    def kept(self) -> Kept:
        """What is held now."""
        weights = 0 if self._built is None else self._built.model.nbytes
        if self._device.is_cpu:
            is_warm = self.level == "warm"
            return Kept(weights if is_warm else 0, 0 if is_warm else weights)
        return Kept(held_bytes(self._device) + self.placed_bytes, self.parked_bytes)

    @property
    def placed_bytes(self) -> int:
        """Device memory of weights that is not PyTorch's."""
        return 0 if self._placed is None else self._placed.device_bytes

    @property
    def parked_bytes(self) -> int:
        """Host memory that holds a second copy of the weights; it stays while the model serves."""
        if isinstance(self._parked, PlacedWeights):
            return self._parked.parked_bytes
        return 0 if self._parked is None else self._parked.nbytes

    def prepare(self, level: EvictionLevel) -> None:
        """Do what may fail of an eviction.

        Raises:
            PlacementError: there is no host memory for the weights; nothing was changed.
        """
        is_kept = self._built is not None and self._next(level) == "host"
        if not is_kept or self._device.is_cpu or self._parked is not None:
            return
        try:
            if self._placed is None:
                self._parked = ParkedWeights([self._built], self._device)
            else:
                self._placed.park()
                self._parked = self._placed
        except (RuntimeError, MemoryError) as error:
            raise PlacementError(
                f"the weights cannot be parked in host memory, {format_bytes(available_bytes())} "
                f"free: {str(error).splitlines()[0]}"
            ) from error

    def leave(self, level: EvictionLevel) -> None:
        """Give up what the level does not keep; nothing may compute with the model any more."""
        self.level = self._next(level)
        if self.level == "cold":
            self.drop()
        elif self.level == "host" and self._parked is not None:
            self._parked.leave_device()

    @contextmanager
    def coming_back(self, blueprint: Blueprint) -> Iterator[None]:
        """Have the model where it can compute behind this; inside, copies may be under way.

        Raises:
            ModelFileError: the file is not what it was.
            PlacementError: the device's memory does not hold the weights.
        """
        if self._built is None:
            self._built = _read_again(blueprint)
            self._place()
        with ExitStack() as stack:
            if self.level == "host" and self._parked is not None:
                with self._room_for(self._parked):
                    if isinstance(self._parked, ParkedWeights):
                        self._parked.return_()
                    else:
                        stack.enter_context(self._parked.coming_back())
            yield

    @contextmanager
    def _room_for(self, parked: ParkedWeights | PlacedWeights) -> Iterator[None]:
        """Raises: PlacementError: the device lacks it."""
        name = self._device.name
        try:
            yield
        except DriverError as error:
            raise PlacementError(
                f"{name} gave no memory for weights to come back to: {error}"
            ) from error
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise PlacementError(
                f"{name} ran out of memory while weights came back from host memory; "
                f"{format_bytes(parked.nbytes)} needed"
            ) from error

    def drop(self) -> None:
        """Hold nothing."""
        if self._placed is not None:
            self._placed.close()
        self._built = self._parked = self._placed = None

    def _next(self, asked: EvictionLevel) -> EvictionLevel:
        """Of an evicted model less is kept, never more."""
        return asked if self.level is None else max(self.level, asked, key=_ORDER.index)


def _read_again(blueprint: Blueprint) -> BuiltModel:
    path = blueprint.options.path
    if blueprint.files != FileIdentity.of(path):
        raise ModelFileError(
            f"{path}: has changed since this model was loaded; restart the server to load it anew"
        )
    checkpoint = open_checkpoint(path)
    reader = WeightReader(checkpoint, blueprint.dtype, blueprint.device.torch, lambda *_: None)
    try:
        return build_model(blueprint, reader)
    finally:
        reader.close()
