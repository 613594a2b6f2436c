"""Direct launches choose the variant that Triton would, and leave alone what they do not know."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from luce.engine.ops.triton import launching
from luce.engine.ops.triton.launching import direct


class _Driver:
    """A device that is not there."""

    device = 0

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 70 + device

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class _Compiled:
    """A variant: what Triton says it was compiled for, and its launches."""

    function, packed_metadata = 1234, (4, 1, 0)

    def __init__(self, assumed: object) -> None:
        self.assumed = assumed
        self.launches: list[tuple[Any, ...]] = []

    def run(self, *args: Any) -> None:
        self.launches.append(args)

    def launch_metadata(self, *_: object) -> None:
        return None


class _Kernel(JITFunction[Any]):
    """Compiles nothing."""

    def __init__(self, fn: Callable[..., None], **options: Any) -> None:
        super().__init__(fn, **options)
        self.variants: list[_Compiled] = []
        self.usual_launches = 0

    def _do_compile(  # type: ignore[override]
        self, key: Any, signature: Any, device: int, constexprs: Any, options: Any, attrs: Any,
        warmup: bool,
    ) -> _Compiled:  # fmt: skip
        chosen = tuple(sorted((name, str(value)) for name, value in vars(options).items()))
        assumed = (
            device, tuple(signature.items()), repr(sorted(constexprs.items())),
            repr(sorted(attrs.items())), chosen,
        )  # fmt: skip
        self.variants.append(_Compiled(assumed))
        self.device_caches[device][0][key] = self.variants[-1]
        return self.variants[-1]

    def taken(self) -> object:
        """What the variant of the last launch assumes."""
        (variant,) = [each for each in self.variants if each.launches]
        self.args = variant.launches.pop()
        return variant.assumed


def _body(x, y, plain, fixed, size, count, scale, A: tl.constexpr, B: tl.constexpr):
    pass


def _kernel() -> _Kernel:
    return _Kernel(_body, do_not_specialize=["fixed"], do_not_specialize_on_alignment=["plain"])


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    driver = _Driver()
    monkeypatch.setattr(triton.runtime.driver, "_active", driver, raising=False)
    monkeypatch.setattr(launching, "_declined", set())
    return driver


def _arguments() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """All that changes what Triton compiles, and some that does not."""
    store = torch.zeros(64, dtype=torch.float32)
    skew = -store.data_ptr() % 16 // 4
    aligned, odd = store[skew : skew + 16], store[skew + 1 : skew + 17]
    usual = (aligned, aligned, aligned, 5, 48, 7, 0.5)
    changes: list[tuple[int, Any]] = [
        (place, tensor) for place in range(3) for tensor in (odd, aligned.half(), aligned[:0], None)
    ]
    numbers = (1, 16, 17, 0, 2**31 - 1, 2**31, 2**40, 2**63, True)
    changes += [(place, number) for place in (3, 4, 5) for number in numbers]
    changes += [(6, 0.25), (6, 1.0), (6, 1)]
    calls = [usual] + [(*usual[:place], new, *usual[place + 1 :]) for place, new in changes]
    named = [{"A": 1, "B": 2}, {"A": 2, "B": 1}, {"B": 1, "A": 2}, {"A": None, "B": 2}]
    return [
        (args, names | options)
        for args, names, options in itertools.product(
            calls, named, [{"num_warps": 4}, {"num_warps": 8}, {"num_warps": 4, "num_stages": 2}]
        )
    ]


def _addresses(values: Iterable[Any]) -> list[Any]:
    return [each.data_ptr() if isinstance(each, torch.Tensor) else each for each in values]


def test_every_launch_takes_the_variant_that_triton_takes(driver: _Driver) -> None:
    ours, theirs = direct(_kernel()), _kernel()
    calls = _arguments()
    for device in (0, 1, 0):
        driver.device = device
        for args, named in calls:
            theirs[3, 2](*args, **named)
            expected = theirs.taken()
            ours[3, 2](*args, **named)
            assert ours.taken() == expected
            grid, stream, rest = ours.args[:3], ours.args[3], ours.args[4:9]
            assert (grid, stream) == ((3, 2, 1), 70 + device)
            assert rest == (1234, (4, 1, 0), None, ours.args[7], ours.args[8])
            assert _addresses(ours.args[9:]) == [*_addresses(args), named["A"], named["B"]]
    assert len(ours.variants) == len(theirs.variants)


def test_a_known_launch_does_not_go_through_triton(
    driver: _Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = direct(_kernel())
    args, named = _arguments()[0]
    for _ in range(2):
        kernel[(1,)](*args, **named)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Triton was asked again")

    monkeypatch.setattr(kernel.run, "_usual", refuse)
    kernel[(9,)](*args, **named)
    (variant,) = kernel.variants
    assert [each[0] for each in variant.launches] == [1, 1, 9]
    with pytest.raises(AssertionError, match="asked again"):
        kernel[(9,)](*args, **named | {"A": 7})


def _keyword_call(kernel: _Kernel) -> None:
    args, named = _arguments()[0]
    kernel[(1,)](*args[:-1], scale=0.5, **named)


def _no_native(kernel: _Kernel) -> None:
    args, named = _arguments()[0]
    kernel.device_caches[0][3].supports_native_tensor_specialization = False
    kernel[(1,)](*args, **named)


@pytest.mark.parametrize("call", [_keyword_call, _no_native])
def test_what_is_not_understood_is_left_to_triton_and_said_once(
    driver: _Driver, caplog: pytest.LogCaptureFixture, call: Callable[[_Kernel], None]
) -> None:
    kernels = [direct(_kernel()) for _ in range(2)]
    with caplog.at_level(logging.INFO, launching.__name__):
        for kernel in kernels:
            for _ in range(3):
                call(kernel)
    for kernel in kernels:
        assert sum(len(variant.launches) for variant in kernel.variants) == 3
        assert kernel.run.__func__ is JITFunction.run
    assert len(caplog.records) == 1


def test_a_launcher_that_wants_other_arguments_is_left_to_triton(
    driver: _Driver, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = direct(_kernel())
    args, named = _arguments()[0]
    for _ in range(2):
        kernel[(1,)](*args, **named)
    (variant,) = kernel.variants

    def picky(*given: Any) -> None:
        if given[4:9] == (1234, (4, 1, 0), None, None, None):
            raise TypeError("9 arguments were expected")
        variant.launches.append(given)

    ours = kernel.run
    ours._variants = {key: each._replace(launch=picky) for key, each in ours._variants.items()}
    with caplog.at_level(logging.INFO, launching.__name__):
        for _ in range(2):
            kernel[(5,)](*args, **named)
    assert [each[0] for each in variant.launches] == [1, 1, 5, 5]
    assert kernel.run.__func__ is JITFunction.run
    assert len(caplog.records) == 1


def test_a_failed_launch_is_not_tried_again(driver: _Driver) -> None:
    kernel = direct(_kernel())
    args, named = _arguments()[0]
    for _ in range(2):
        kernel[(1,)](*args, **named)

    def broken(*_: Any) -> None:
        raise RuntimeError("an illegal memory access")

    ours = kernel.run
    ours._variants = {key: each._replace(launch=broken) for key, each in ours._variants.items()}
    with pytest.raises(RuntimeError, match="illegal"):
        kernel[(1,)](*args, **named)
    assert kernel.run is ours


def test_what_the_interpreter_runs_stays_as_it_is() -> None:
    interpreted = object()
    assert direct(interpreted) is interpreted
