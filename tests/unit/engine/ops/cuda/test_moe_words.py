"""Mixtures of up to four tokens, their own text on the host: choices, shared experts, bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda import moe_words
from luce.engine.ops.cuda.moe_words import WordMixture
from luce.engine.ops.moe import Router
from luce.engine.ops.ref.moe import route as plain_route
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.quant_planes import QuantPlanes
from support.cuda_host import _HEADER, COMPILER, HostDevice
from support.quant_cases import error, made, noise

EXPERTS, CHOSEN, HIDDEN, SIZE = 64, 3, 1024, 256
TOLERANCE = 2.5e-3
"""Results are bfloat16, which makes 1.7e-3 of it."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host in place of a GPU."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    device = HostDevice(Path(_HEADER).with_name("moe_words_emulation.hpp"))

    def compiled(
        name: str, files: Sequence[str], constants: Mapping[str, int], launch: KernelLaunch
    ) -> DeviceKernel:
        own = [each for each in files if each not in moe_words.PRIMITIVES]
        return device.compiled_kernel(name, own, constants, launch)

    monkeypatch.setattr(moe_words, "compiled_kernel", compiled)
    moe_words._compiled.cache_clear()
    yield device
    moe_words._compiled.cache_clear()


def mixture(*, has_shared: bool) -> WordMixture:
    sizes = (
        (EXPERTS * 2 * SIZE, HIDDEN),
        (EXPERTS * HIDDEN, SIZE),
        (2 * SIZE, HIDDEN),
        (HIDDEN, SIZE),
    )
    planes = [made("Q4_K", *each) for each in sizes]
    return WordMixture(EXPERTS, *planes[:2], *(planes[2:] if has_shared else (None, None)))


def words_of(x: torch.Tensor) -> torch.Tensor:
    """Rows as `norm_quantise` leaves them, in the plain order."""
    groups = x.float().view(len(x), -1, 32)
    largest = groups.abs().amax(2, keepdim=True)
    codes = (groups * (32767.0 / largest)).round().to(torch.int32)
    eights = codes.view(*codes.shape[:2], 4, 2, 4)
    packed = (eights[..., 0, :] & 0xFFFF) | (eights[..., 1, :] << 16)
    scale = (largest / 32767.0).view(torch.int32)
    halves = codes.view(*codes.shape[:2], 2, 16).sum(3).to(torch.int32)
    return torch.cat([packed.flatten(2), scale, halves], 2).transpose(1, 2).contiguous()


def router(*, norm_weights: bool = True) -> Router:
    loads = torch.zeros(EXPERTS, dtype=torch.int64)
    gate = DeviceLinear(torch.zeros(EXPERTS + 1, HIDDEN), None)
    return Router(gate, EXPERTS, CHOSEN, norm_weights, plain_route, loads)


def padded(logits: torch.Tensor) -> torch.Tensor:
    """In rows that begin at whole words."""
    wide = torch.zeros(len(logits), EXPERTS + 8, dtype=logits.dtype)
    wide[:, : EXPERTS + 1] = logits
    return wide[:, : EXPERTS + 1]


def block(x: torch.Tensor, inner: QuantPlanes, outer: QuantPlanes) -> torch.Tensor:
    gate, up = (x @ decode(inner).double().T).chunk(2, 1)
    return (gate * gate.sigmoid() * up) @ decode(outer).double().T


def expected(mix: WordMixture, x: torch.Tensor, logits: torch.Tensor, mine: Router) -> torch.Tensor:
    """What is added, in float64."""
    wide = x.double()
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


def added(mix: WordMixture, x: torch.Tensor, logits: torch.Tensor, mine: Router) -> torch.Tensor:
    hidden = torch.zeros(len(x), HIDDEN, dtype=torch.bfloat16)
    mix.add(hidden, words_of(x), padded(logits), mine)
    return hidden


@pytest.mark.parametrize(("has_shared", "norm_weights"), [(True, True), (False, False)])
def test_mixtures(host: HostDevice, has_shared: bool, norm_weights: bool) -> None:
    mix, x = mixture(has_shared=has_shared), noise(2, HIDDEN) * 0.02
    logits = noise(2, EXPERTS + 1, seed=3)
    # Equal ones: the lower number comes first.
    logits[0, [9, 40]] = 7.0
    mine, plain = router(norm_weights=norm_weights), router(norm_weights=norm_weights)
    assert mix.refusal(CHOSEN) is None
    found = added(mix, x, logits, mine)
    assert error(found, expected(mix, x, logits, plain)) < TOLERANCE
    assert torch.equal(mine.loads, plain.loads)
    host.backwards = True
    assert torch.equal(added(mix, x, logits, mine), found)
    assert torch.equal(added(mix, x[1:], logits[1:], mine), found[1:])


def test_what_they_are_not_made_for() -> None:
    mix = mixture(has_shared=True)
    assert mix.refusal(16) is not None
    assert replace(mix, num_experts=65).refusal(CHOSEN) is not None
    assert replace(mix, s_inner=made("Q6_K", 2 * SIZE, HIDDEN)).refusal(CHOSEN) is not None
    assert replace(mix, outer=made("Q4_K", 64, 2048)).refusal(CHOSEN) is not None
    assert replace(mix, inner=made("Q4_K", 64, 1280)).refusal(CHOSEN) is not None
