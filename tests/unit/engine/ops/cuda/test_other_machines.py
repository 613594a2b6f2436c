"""Kernels of CUDA C++ on machines it is not for: refused or tried, said so; never an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch.utils import cpp_extension

from luce.engine import device
from luce.engine.ops import select
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.candidates import OpRequest
from luce.engine.ops.cuda import prefill_attention
from luce.engine.ops.cuda.decode_choice import decode_for
from luce.engine.ops.cuda.prefill_choice import prefill_for
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.decode_pieces import MOST_TOKENS
from luce.engine.ops.triton import paged_attention_decode, paged_attention_prefill, probe

REQUEST = OpRequest(
    torch.device("cpu"), torch.bfloat16, HeadShape(6, 2, 128), interleaved_rope=False
)


@dataclass
class Machine:
    """A pretended GPU, and the compiler's answer, which is an error; it notes what it was given."""

    capability: tuple[int, int]
    hip: str | None = None
    error: Exception = field(default_factory=lambda: RuntimeError("no such instruction"))
    compiled: list[tuple[str, str | None]] = field(default_factory=list)

    def compile(self, source: str, name: str, compute_capability: str | None) -> None:
        self.compiled.append((name, compute_capability))
        raise self.error


Pretend = Callable[[Machine], Machine]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Make this process believe that it runs on a machine, and try kernels there anew."""

    def begin(machine: Machine) -> Machine:
        monkeypatch.setattr(torch.version, "hip", machine.hip)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: machine.capability)
        monkeypatch.setattr(torch.cuda, "_compile_kernel", machine.compile, raising=False)
        monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
        monkeypatch.setattr(probe, "INTERPRETED", False)
        monkeypatch.setattr(probe, "_known", {})
        device._built_kernel.cache_clear()
        return machine

    tensor_map: Callable[..., int] = lambda *_: 0  # noqa: E731
    monkeypatch.setattr(prefill_attention, "tensor_map", tensor_map)
    return begin


def assert_all_is_left_to_triton(request: OpRequest = REQUEST) -> None:
    assert decode_for(request) == (paged_attention_decode.decode_attention, False)
    assert prefill_for(request) is paged_attention_prefill.prefill_attention


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (Machine((11, 0), hip="6.4"), "made for NVIDIA GPUs"),
        (Machine((7, 5)), "made for compute capability 9.0"),
        (Machine((8, 0)), "made for compute capability 9.0"),
        (Machine((8, 6)), "made for compute capability 9.0"),
        (Machine((8, 9)), "made for compute capability 9.0"),
    ],
    ids=["hip", "7.5", "8.0", "8.6", "8.9"],
)
def test_what_the_processor_lacks_is_not_even_compiled(
    pretend: Pretend, caplog: pytest.LogCaptureFixture, machine: Machine, reason: str
) -> None:
    pretend(machine)
    with caplog.at_level(logging.INFO):
        assert_all_is_left_to_triton()
    assert reason in str(select._cuda_refusal(REQUEST)), "products too"
    assert machine.compiled == []
    assert caplog.text.count(reason) == 2
    assert not [each for each in caplog.records if each.levelno > logging.INFO]


@pytest.mark.parametrize("capability", [(10, 0), (12, 0)])
def test_only_hopper_is_given_what_only_hopper_has(
    pretend: Pretend, capability: tuple[int, int]
) -> None:
    machine = pretend(Machine(capability))
    assert_all_is_left_to_triton()
    assert machine.compiled == [("decode_attention", None)]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Kernel compilation failed"),
        OSError("Could not find any NVRTC library"),
        ModuleNotFoundError("No module named 'setuptools'"),
        TypeError("unexpected keyword argument"),
        AttributeError("no such symbol"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_compiler_that_fails_is_asked_once(
    pretend: Pretend, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    machine = pretend(Machine((9, 0), error=error))
    for _ in range(2):
        assert_all_is_left_to_triton()
    assert machine.compiled == [("decode_attention", None), ("prefill_attention", "90a")]
    assert caplog.text.count("a faster way is left out, a kernel does not work here: ") == 2
    assert str(error) in caplog.text


def test_a_pytorch_without_a_compiler(
    pretend: Pretend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(Machine((9, 0)))
    monkeypatch.delattr(torch.cuda, "_compile_kernel")
    with caplog.at_level(logging.INFO):
        assert_all_is_left_to_triton()
    assert caplog.text.count("this PyTorch cannot compile CUDA C++") == 2


def test_contexts_whose_pieces_have_no_number(pretend: Pretend) -> None:
    machine = pretend(Machine((9, 0)))
    decode_for(replace(REQUEST, max_ctx=MOST_TOKENS + 1))
    assert machine.compiled == []
    decode_for(replace(REQUEST, max_ctx=MOST_TOKENS))
    assert machine.compiled == [("decode_attention", None)]


def test_no_toolkit_is_needed(pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's compiler wants its folder named, and stops where there is none."""
    pretend(Machine((9, 0)))
    asked: list[list[str]] = []

    def compile_text(source: str, name: str, compute_capability: str | None) -> object:
        assert "#include" not in source
        asked.append(cpp_extension.include_paths("cuda"))
        return lambda *_, **__: None

    monkeypatch.setattr(torch.cuda, "_compile_kernel", compile_text)
    compiled_kernel("decode_attention", ("decode_attention.cu",), {})
    device._built_kernel.cache_clear()
    assert len(asked) == 1
