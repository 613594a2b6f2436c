"""Mixtures by tensor cores, their own text on the host: types, choices, shared experts, bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch, KernelLimits
from luce.engine.ops.cuda import moe_bytes
from luce.engine.ops.cuda.moe_bytes import ByteMixture, MixtureShape, refusal
from luce.engine.ops.moe import Router
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.ref.moe import route as plain_route
from luce.engine.ops.ref.pointwise import rms_norm
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.quant_planes import QuantPlanes
from support.cuda_host import COMPILER, MIXTURE_HEADER, HostDevice
from support.quant_cases import error, made, noise

EXPERTS, CHOSEN, HIDDEN, SIZE, S_SIZE = 5, 2, 256, 256, 512
CPU = torch.device("cpu")
TOLERANCE = 2.5e-3
"""Results are bfloat16, which makes 1.7e-3 of it."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(MIXTURE_HEADER)

    def compiled(
        name: str, files: Sequence[str], constants: Mapping[str, int], launch: KernelLaunch
    ) -> DeviceKernel:
        own = [each for each in files if each not in moe_bytes.PRIMITIVES]
        return device.compiled_kernel(name, own, constants, launch)

    monkeypatch.setattr(moe_bytes, "compiled_kernel", compiled)
    monkeypatch.setattr(moe_bytes, "kernel_limits", lambda _: KernelLimits(2, 227 << 10, 228 << 10))

    def forget() -> None:
        moe_bytes._compiled.cache_clear()
        moe_bytes._compiled_stage.cache_clear()

    forget()
    yield device
    forget()


def mixture(inner: str, outer: str, shared: str | None = None) -> ByteMixture:
    shape = MixtureShape(EXPERTS, CHOSEN, HIDDEN, SIZE, 0 if shared is None else S_SIZE)
    return ByteMixture(
        shape,
        made(inner, EXPERTS * 2 * SIZE, HIDDEN),
        made(outer, EXPERTS * HIDDEN, SIZE),
        None if shared is None else made(shared, 2 * S_SIZE, HIDDEN),
        None if shared is None else made(shared, HIDDEN, S_SIZE),
    )


def router(*, norm_weights: bool = True) -> Router:
    loads = torch.zeros(EXPERTS, dtype=torch.int64)
    gate = DeviceLinear(torch.zeros(EXPERTS + 1, HIDDEN), None)
    return Router(gate, EXPERTS, CHOSEN, norm_weights, plain_route, loads)


NORM = NormWeight(noise(HIDDEN, seed=9).abs() * 0.02, 1e-6)


def block(x: torch.Tensor, inner: QuantPlanes, outer: QuantPlanes) -> torch.Tensor:
    gate, up = (x @ decode(inner).double().T).chunk(2, 1)
    return (gate * gate.sigmoid() * up) @ decode(outer).double().T


def expected(mix: ByteMixture, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """What is added, in float64."""
    normal = rms_norm(x, NORM.weight, NORM.eps).double()
    routing, gate = router().choose_by(logits)
    total = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
    for expert in range(EXPERTS):
        rows = torch.arange(2 * SIZE) + expert * 2 * SIZE
        outs = torch.arange(HIDDEN) + expert * HIDDEN
        result = block(normal, mix.inner.gathered(rows), mix.outer.gathered(outs))
        total += (routing.weights.double() * (routing.experts == expert)).sum(1, True) * result
    if mix.s_inner is not None and mix.s_outer is not None and gate is not None:
        total += gate.double().sigmoid() * block(normal, mix.s_inner, mix.s_outer)
    return total


def added(mix: ByteMixture, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """What the kernels add; float32 differences of bfloat16 sums."""
    hidden = x.clone()
    staged, routing = mix.staged(hidden, NORM, logits, router())
    images = mix.inner_products(staged, routing)
    mix.outer_products(hidden.zero_(), images, routing, logits[:, EXPERTS:])
    return hidden


@pytest.mark.parametrize(
    ("inner", "outer", "shared"),
    [("Q4_K", "Q6_K", "Q8_0"), ("Q5_K", "MXFP4", None), ("IQ4_XS", "Q4_1", "Q5_0")],
)
def test_mixtures(host: HostDevice, inner: str, outer: str, shared: str | None) -> None:
    mix, x, logits = mixture(inner, outer, shared), noise(5, HIDDEN), noise(5, EXPERTS + 1, seed=3)
    assert refusal(mix, CPU) is None
    found = added(mix, x, logits)
    assert error(found, expected(mix, x, logits)) < TOLERANCE
    host.backwards = True
    assert torch.equal(added(mix, x, logits), found)


def test_a_token_depends_on_no_other(host: HostDevice) -> None:
    mix, x = mixture("Q4_K", "Q6_K", "Q4_K"), noise(11, HIDDEN)
    # Most go to the same expert.
    logits = noise(11, EXPERTS + 1, seed=3)
    logits[:10, 2] = 9
    together = added(mix, x, logits)
    assert error(together, expected(mix, x, logits)) < TOLERANCE
    few = [3, 10, 8, 0, 7]
    assert torch.equal(added(mix, x[few], logits[few]), together[few])


@pytest.mark.parametrize("norm_weights", [True, False])
def test_choices_are_those_of_the_plain_router(host: HostDevice, norm_weights: bool) -> None:
    mix, x, logits = mixture("Q4_0", "Q4_0"), noise(5, HIDDEN), noise(5, EXPERTS, seed=3)
    logits[1] = torch.tensor([-2.0, -0.0, 0.0, -1.0, 0.0])
    mine, plain = router(norm_weights=norm_weights), router(norm_weights=norm_weights)
    _, found = mix.staged(x, NORM, logits, mine)
    wanted, _ = plain.choose_by(logits)
    assert torch.equal(found.experts, wanted.experts)
    assert torch.allclose(found.weights.float(), wanted.weights.float(), rtol=1e-2)
    assert torch.equal(mine.loads, plain.loads)


@pytest.mark.parametrize(
    ("correct", "wrong"),
    [
        ("    vectors.wait();\n", ""),
        ("        wait_for_copies<RING - 1>();\n", ""),
        ("        copy(at);\n", "        end_batch();\n"),
        ("sum = fmaf(bfloat16_to_float(weights[pair]),", "sum = fmaf(1.0f,"),
    ],
    ids=["x not there", "weights not there", "nothing new", "no weights"],
)
def test_what_is_wrong_is_seen(host: HostDevice, correct: str, wrong: str) -> None:
    mix, x = mixture("Q4_K", "Q4_K"), noise(5, HIDDEN)
    logits = noise(5, EXPERTS, seed=3)
    wanted = expected(mix, x, logits)

    def edited(text: str) -> str:
        return text.replace(correct, wrong)

    host.edit = edited
    moe_bytes._compiled.cache_clear()
    assert not error(added(mix, x, logits), wanted) < TOLERANCE


def test_refuses_what_it_does_not_know(host: HostDevice) -> None:
    mix = mixture("Q4_0", "Q4_0")
    assert refusal(mix, CPU) is None
    many = replace(mix.shape, chosen=17)
    assert refusal(replace(mix, shape=many), CPU) == "made for fewer experts"
    odd = replace(mix.shape, size=192)
    assert refusal(replace(mix, shape=odd), CPU) == "made for sizes in whole blocks of 256"
    assert refusal(mixture("Q4_0", "Q2_K"), CPU) == "not made for Q2_K"
