"""Mixtures of 5 to 16 tokens, their own text on the host: choices, shared experts, shares, bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch, KernelLimits
from luce.engine.ops.cuda import moe_many
from luce.engine.ops.cuda.moe_many import ManyMixture
from luce.engine.ops.moe import Router
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.ref.moe import route as plain_route
from luce.engine.ops.ref.pointwise import rms_norm
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.quant_planes import QuantPlanes
from support.cuda_host import COMPILER, HOPPER_HEADER, HostDevice
from support.quant_cases import error, made, noise

EXPERTS, CHOSEN, HIDDEN, SIZE, TOKENS = 64, 3, 1024, 256, 6
THERE = 12
"""Experts whose weights are; nobody chooses the others."""
PROCESSORS = 7
TOLERANCE = 2.5e-3
"""Results are bfloat16, which makes 1.7e-3 of it."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU, of so few processors that parts begin and end within experts."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice()
    headers = {
        name: HOPPER_HEADER.with_name(f"{file}_emulation.hpp")
        for name, file in (
            ("moe_many_stage", "moe_stage"), ("moe_many", "moe_many"), ("moe_many_sum", "moe_many"),
        )
    }  # fmt: skip

    def compiled(
        name: str, files: Sequence[str], constants: Mapping[str, int], launch: KernelLaunch
    ) -> DeviceKernel:
        own = [each for each in files if each not in moe_many.PRIMITIVES]
        return device.compiled_kernel(name, own, constants, launch, headers[name])

    def forget() -> None:
        moe_many._compiled.cache_clear()
        moe_many._compiled_stage.cache_clear()
        moe_many._compiled_sum.cache_clear()

    limits = KernelLimits(PROCESSORS, 227 << 10, 228 << 10)
    monkeypatch.setattr(moe_many, "compiled_kernel", compiled)
    monkeypatch.setattr(moe_many, "kernel_limits", lambda _: limits)
    forget()
    yield device
    forget()


def mixture(*, has_shared: bool) -> ManyMixture:
    sizes = (
        (THERE * 2 * SIZE, HIDDEN),
        (THERE * HIDDEN, SIZE),
        (2 * SIZE, HIDDEN),
        (HIDDEN, SIZE),
    )
    planes = [made("Q4_K", *each) for each in sizes]
    inner, outer, s_inner, s_outer = planes
    arrivals = torch.zeros(PROCESSORS, dtype=torch.int32)
    if not has_shared:
        return ManyMixture(EXPERTS, inner, outer, None, None, arrivals)
    return ManyMixture(EXPERTS, inner, outer, s_inner, s_outer, arrivals)


def router(*, norm_weights: bool = True) -> Router:
    loads = torch.zeros(EXPERTS, dtype=torch.int64)
    matrix = noise(EXPERTS + 1, HIDDEN, seed=3) * HIDDEN**-0.5
    # By what all but the first token have in common: most of them go to one expert, more than are
    # computed together, and none to those that are not there.
    matrix[9, 0] = 2.0
    matrix[THERE:EXPERTS, 1] = -9.0
    # Equal ones: the lower number comes first.
    matrix[11] = matrix[4]
    return Router(DeviceLinear(matrix, None), EXPERTS, CHOSEN, norm_weights, plain_route, loads)


def tokens() -> torch.Tensor:
    x = noise(TOKENS, HIDDEN)
    x[1:, 0], x[:, 1] = 4.0, 2.0
    return x


NORM = NormWeight(
    torch.rand(HIDDEN, generator=torch.Generator().manual_seed(5)).add(0.5).mul(0.02).bfloat16(),
    1e-6,
)


def block(x: torch.Tensor, inner: QuantPlanes, outer: QuantPlanes) -> torch.Tensor:
    gate, up = (x @ decode(inner).double().T).chunk(2, 1)
    return (gate * gate.sigmoid() * up) @ decode(outer).double().T


def expected(mix: ManyMixture, x: torch.Tensor, logits: torch.Tensor, mine: Router) -> torch.Tensor:
    """What is added, in float64."""
    wide = rms_norm(x, NORM.weight, NORM.eps).double()
    routing, gate = mine.choose_by(logits)
    total = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
    for token in range(len(x)):
        for weight, expert in zip(routing.weights[token], routing.experts[token], strict=True):
            rows = torch.arange(2 * SIZE) + expert * 2 * SIZE
            outs = torch.arange(HIDDEN) + expert * HIDDEN
            planes = mix.inner.gathered(rows), mix.outer.gathered(outs)
            total[token] += weight.double() * block(wide[token : token + 1], *planes)[0]
    if mix.s_inner is not None and mix.s_outer is not None and gate is not None:
        total += gate.double().sigmoid() * block(wide, mix.s_inner, mix.s_outer)
    return total


def added(mix: ManyMixture, x: torch.Tensor, mine: Router) -> torch.Tensor:
    """To rows of x, which are small beside it."""
    hidden = x.clone()
    mix.add(hidden, NORM, mine)
    return hidden


@pytest.mark.parametrize(("has_shared", "norm_weights"), [(True, True), (False, False)])
def test_mixtures(host: HostDevice, has_shared: bool, norm_weights: bool) -> None:
    mix, x = mixture(has_shared=has_shared), tokens()
    mine, plain = router(norm_weights=norm_weights), router(norm_weights=norm_weights)
    found = added(mix, x, mine)
    _, logits = mix._staged(x, NORM, mine)
    assert isinstance(mine.gate, DeviceLinear)
    normal = rms_norm(x, NORM.weight, NORM.eps).double()
    assert error(logits, normal @ mine.gate.weight.double().T) < TOLERANCE
    result = expected(mix, x, logits, plain)
    assert result.norm() > 4 * x.norm()
    assert error(found, x.double() + result) < TOLERANCE
    assert torch.equal(mine.loads, plain.loads)
    assert mine.loads[9] == TOKENS - 1
    host.backwards = True
    assert torch.equal(added(mix, x, mine), found)
    assert torch.equal(added(mix, x[1:], mine), found[1:])


def test_blocks_that_wait_for_each_other_must_all_run(
    host: HostDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mix, mine = mixture(has_shared=True), router()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert mix.refusal(mine) is None
    (tmp_path / "control").touch()
    assert "MPS" in str(mix.refusal(mine))


def test_what_they_are_not_made_for(host: HostDevice) -> None:
    mix, mine = mixture(has_shared=True), router()
    assert mix.refusal(mine) is None
    assert mix.refusal(replace(mine, num_chosen=16)) is not None
    assert replace(mix, num_experts=65).refusal(mine) is not None
    assert replace(mix, s_inner=made("Q6_K", 2 * SIZE, HIDDEN)).refusal(mine) is not None
    assert replace(mix, s_outer=made("Q4_K", HIDDEN, 512)).refusal(mine) is not None
    assert replace(mix, outer=made("Q4_K", 64, 2048)).refusal(mine) is not None
    assert replace(mix, inner=made("Q4_K", 64, 1280)).refusal(mine) is not None
