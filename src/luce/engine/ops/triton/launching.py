"""Launches of Triton kernels without what Triton does again for each of them.

Triton binds the arguments, turns the options to text for a key, compares the kernel's globals, and
only then launches: several times what the launch itself takes. A kernel marked `direct` keeps what
came out of that, by a key of its own; later launches build the key and go straight to the
compiled kernel's launcher.

The key has all that Triton compiled for: of each argument what Triton's own specialisation says
of it (type, divisibility, being 1 or None), and the constants and options as they are. The
device is part of it, since a loaded kernel is one device's.

Left out, because we use none of it: hooks before and around launches, settings of Triton that
change while it runs, and the check that globals a kernel reads stay the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction

log = logging.getLogger(__name__)

_UNKNOWN = (AttributeError, ImportError, LookupError, TypeError, ValueError)
"""What comes of a Triton that is not as we know it; what a device says is another matter."""

_declined: set[str] = set()
"""What has been logged."""


def direct(kernel: Any) -> Any:
    """Let a kernel be launched directly from its second launch on; `kernel[grid](...)` as before.

    Its arguments come by place, its constants, which follow them, and options by name. In Triton's
    interpreter, and where Triton is not as we know it, nothing changes.
    """
    if isinstance(kernel, JITFunction):
        kernel.run = _DirectRun(kernel)
    return kernel


class _Variant(NamedTuple):
    """A compiled kernel, loaded on a device.

    Attributes:
        launch: takes grid, stream, function, packed metadata, three hooks, and all arguments.
        function: handle.
        packed: the metadata.
        constants: the last arguments, which the launcher wants to see and does not use.
    """

    launch: Callable[..., object]
    function: object
    packed: object
    constants: tuple[object, ...]


def _check_specialisation(specialise: Callable[..., object], backend: Any) -> None:
    """Whether tensors are told apart as we do it.

    Raises:
        ValueError: no.
    """
    store = torch.zeros(32, dtype=torch.int32)
    skew = -store.data_ptr() % 16 // 4
    cases = [
        (store[skew:], True, True, ("*i32", "D")),
        (store[skew + 1 :], True, True, ("*i32", "")),
        (store[skew:], True, False, ("*i32", "")),
        (16, True, True, ("i32", "D")),
        (1, True, True, ("constexpr", 1)),
        (None, True, True, ("constexpr", None)),
    ]
    if not backend.supports_native_tensor_specialization:
        raise ValueError("the vendor's specialisation is its own")
    for value, by_value, by_alignment, expected in cases:
        if specialise(backend, value, False, by_value, by_alignment) != expected:
            raise ValueError(f"specialisation is not as we know it: {expected}")


class _DirectRun:
    """In place of a kernel's `run`."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._usual = kernel.run
        self._variants: dict[object, _Variant] = {}
        self._specialise: Callable[..., object] | None = None
        self._backend: object = None
        self._current_device: Callable[[], int] = lambda: 0
        self._current_stream: Callable[[int], object] = lambda device: None
        self._params: tuple[tuple[bool, bool], ...] = ()

    def __call__(self, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        specialise = self._specialise
        if specialise is None or warmup:
            return self._run_usually(args, grid, named, warmup=warmup)
        device = self._current_device()
        facts: list[object] = [device]
        given: list[object] = []
        for arg, (by_value, by_alignment) in zip(args, self._params, strict=False):
            if type(arg) is torch.Tensor:
                # As Triton does it, in a third of the time; the launcher need not ask again.
                address = arg.data_ptr()
                facts.append(arg.dtype)
                if by_value and by_alignment:
                    facts.append(address % 16 == 0)
                given.append(address)
            else:
                facts.append(specialise(self._backend, arg, False, by_value, by_alignment))
                given.append(arg)
        key = (tuple(facts), tuple(named), tuple(named.values()))
        variant = self._variants.get(key)
        if variant is None:
            return self._run_usually(args, grid, named, key=key)
        x, y, z = (*grid, 1, 1)[:3]
        launch, function, packed, constants = variant
        try:
            return launch(
                x, y, z, self._current_stream(device), function, packed, None, None, None,
                *given, *constants,
            )  # fmt: skip
        except _UNKNOWN as error:
            self._decline(error)
            return self._run_usually(args, grid, named)

    def _run_usually(
        self,
        args: tuple[Any, ...],
        grid: Any,
        named: dict[str, Any],
        *,
        warmup: bool = False,
        key: object = None,
    ) -> Any:
        """As Triton does, and learn from it."""
        compiled = self._usual(*args, grid=grid, warmup=warmup, **named)
        if warmup:
            return compiled
        try:
            if self._kernel.run is not self:
                return compiled
            if self._specialise is None:
                self._prepare()
            elif key is not None:
                self._variants[key] = self._variant(compiled, len(args), named)
        except _UNKNOWN as error:
            self._decline(error)
        return compiled

    def _prepare(self) -> None:
        """See what the arguments' specialisation depends on.

        Raises:
            Exception: Triton is not as we know it.
        """
        from triton._C.libtriton import native_specialize_impl

        params = [param for param in self._kernel.params if not param.is_constexpr]
        if any(param.annotation_type or param.is_const for param in params):
            raise ValueError("an argument's type is fixed")
        self._current_device = driver.active.get_current_device
        self._current_stream = driver.active.get_current_stream
        self._backend = self._kernel.device_caches[self._current_device()][3]
        self._params = tuple(
            (not param.do_not_specialize, not param.do_not_specialize_on_alignment)
            for param in params
        )
        _check_specialisation(native_specialize_impl, self._backend)
        self._specialise = native_specialize_impl

    def _variant(self, compiled: Any, num_args: int, named: dict[str, Any]) -> _Variant:
        """What a usual launch came out with.

        Raises:
            Exception: the call is of a form that cannot be launched directly.
        """
        names = [param.name for param in self._kernel.params]
        constants = names[num_args:]
        runtime = [param.name for param in self._kernel.params if not param.is_constexpr]
        if names[:num_args] != runtime:
            raise ValueError("arguments do not come first and by place")
        values = tuple(named[name] for name in constants)
        return _Variant(compiled.run, compiled.function, compiled.packed_metadata, values)

    def _decline(self, error: Exception) -> None:
        """Leave the kernel to Triton."""
        self._kernel.run = self._usual
        self._specialise = None
        reason = f"{type(error).__name__}: {error}"
        if reason not in _declined:
            _declined.add(reason)
            log.info(
                "kernels are launched by Triton",
                extra={"kernel": self._kernel.__name__, "reason": reason},
            )
