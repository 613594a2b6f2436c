"""Whole mixtures of few tokens against float64 over the values their file stands for."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from luce.engine.ops.linear import Linear
from luce.engine.ops.moe import Router
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.random_planes import random_planes
from luce.engine.ops.triton import moe_choose, moe_few, moe_fuse, moe_trial, probe
from luce.engine.ops.triton.gated_mlp import silu_and_mul
from luce.engine.ops.triton.linear import DeviceLinear
from luce.engine.ops.triton.moe_few import FewTiling, FewTokens
from luce.engine.ops.triton.moe_fuse import few_tokens
from luce.engine.ops.triton.moe_quant import PlanesOfExperts, QuantExperts
from luce.engine.ops.triton.moe_route import route
from luce.engine.ops.triton.norm_quantise import norm_and_quantise
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.ops.triton.rms_norm import rms_norm
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.loaders.quants import dequantize
from luce.testing.quant_blocks import random_blocks

# Few programs: the interpreter takes them one by one.
TILINGS = (
    FewTiling(inner_rows=128, outer_rows=256, outer_turns=1, run=2),
    FewTiling(inner_rows=128, outer_rows=64, outer_turns=3, run=2),
)
SMALL = FewTiling(inner_rows=64, outer_rows=128, outer_columns=4, run=2)
NUM_EXPERTS, CHOSEN = 5, 3
EPS = 1e-5


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def planes_of(
    kind: str, rows: int, columns: int, device: torch.device, seed: int
) -> tuple[QuantPlanes, torch.Tensor]:
    """Planes, and their values in float64."""
    raw = random_blocks(kind, rows, columns, torch.Generator().manual_seed(seed))
    values = torch.from_numpy(dequantize(kind, raw.numpy(), (rows, columns))).double()
    return repack(kind, raw.to(device), rows, columns), values


@dataclass(frozen=True)
class Says:
    """A router's product that says what it was told."""

    logits: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits[: len(x)]

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return residual + self(x)

    def holds(self, weight: torch.Tensor) -> bool:
        return weight is self.logits

    @property
    def nbytes(self) -> int:
        return self.logits.nbytes


def router_of(gate: Linear, device: torch.device, num_experts: int = NUM_EXPERTS) -> Router:
    loads = torch.zeros(num_experts, dtype=torch.int64, device=device)
    return Router(gate, num_experts, CHOSEN, norm_weights=True, op=route, loads=loads)


def logits_of(tokens: int, device: torch.device) -> torch.Tensor:
    """Most go to expert 4, nobody to expert 1; the shared expert's gate is the last column."""
    logits = noise(tokens, NUM_EXPERTS + 1, seed=7)
    logits[:, 4] += 3.0
    logits[:, 1] = -50.0
    return logits.to(device)


@dataclass
class Case:
    """A mixture and what it stands for."""

    few: FewTokens
    norm: NormWeight
    values: dict[str, torch.Tensor]

    @property
    def logits(self) -> torch.Tensor:
        logits = logits_of(12, self.norm.weight.device)
        return logits if self.few.s_inner is not None else logits[:, :NUM_EXPERTS]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.few(hidden, self.norm, router_of(Says(self.logits), hidden.device))

    def expected(self, hidden: torch.Tensor) -> torch.Tensor:
        routing, gates = router_of(Says(self.logits), hidden.device).choose(hidden)
        wide = hidden.double().cpu()
        scale = (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()
        x = wide * scale * self.norm.weight.double().cpu()
        out = wide.clone()
        for token in range(len(hidden)):
            for choice in range(CHOSEN):
                expert = int(routing.experts[token, choice])
                weight = routing.weights[token, choice].double().cpu()
                gate, up = (self.values["inner"][expert] @ x[token]).chunk(2)
                out[token] += weight * (self.values["outer"][expert] @ (gate * gate.sigmoid() * up))
            if gates is not None:
                gate, up = (self.values["s_inner"] @ x[token]).chunk(2)
                result = self.values["s_outer"] @ (gate * gate.sigmoid() * up)
                out[token] += gates[token].double().cpu().sigmoid() * result
        return out


def case_of(
    device: torch.device,
    kinds: tuple[str, str],
    sizes: tuple[int, int],
    shared: tuple[str, str, int] | None,
) -> Case:
    """Experts of such types and (F, hidden), and a shared one of such types and F."""
    size, hidden = sizes
    inner, inner_values = planes_of(kinds[0], NUM_EXPERTS * 2 * size, hidden, device, 1)
    outer, outer_values = planes_of(kinds[1], NUM_EXPERTS * hidden, size, device, 2)
    values = {
        "inner": inner_values.view(NUM_EXPERTS, 2 * size, hidden),
        "outer": outer_values.view(NUM_EXPERTS, hidden, size),
    }
    gate_up = down = None
    if shared is not None:
        s_inner, values["s_inner"] = planes_of(shared[0], 2 * shared[2], hidden, device, 3)
        s_outer, values["s_outer"] = planes_of(shared[1], hidden, shared[2], device, 4)
        gate_up, down = TritonQuantLinear([s_inner], None), TritonQuantLinear([s_outer], None)
    experts = QuantExperts(inner, outer, NUM_EXPERTS, silu_and_mul)
    said = Says(noise(16, NUM_EXPERTS + 1).to(device))
    few = few_tokens(experts, gate_up, down, router_of(said, device))
    assert isinstance(few, FewTokens)
    # Numbers of the usual size, though blocks of some types are far from them.
    factor = 1.0 / values["inner"].std().item() / hidden**0.5
    weight = (1 + 0.2 * noise(hidden, seed=5)) * factor
    tilings = TILINGS if hidden > 96 else (SMALL, SMALL)
    return Case(replace(few, tilings=tilings), NormWeight(weight.to(device), EPS), values)


CASES = [
    (("Q4_K", "Q6_K"), (256, 256), ("Q5_K", "Q8_0", 32)),
    (("Q8_0", "Q4_0"), (96, 160), ("Q5_1", "Q8_0", 32)),
    (("IQ4_NL", "Q4_0"), (32, 64), ("Q8_0", "IQ4_NL", 32)),
    (("Q4_0", "Q5_0"), (64, 96), None),
]


@pytest.mark.parametrize(("kinds", "sizes", "shared"), CASES)
def test_a_mixture(
    device: torch.device,
    kinds: tuple[str, str],
    sizes: tuple[int, int],
    shared: tuple[str, str, int] | None,
) -> None:
    """One token, and so many that runs of an expert's tokens are cut; rows depend on none other."""
    case = case_of(device, kinds, sizes, shared)
    hidden = noise(5, sizes[1], seed=6).to(device)
    expected = case.expected(hidden)
    found = case(hidden.clone())
    moved = (expected - hidden.double().cpu()).norm()
    assert ((found.double().cpu() - expected).norm() / moved).item() < 1e-4
    one = hidden[:1].clone()
    assert case(one) is one
    assert torch.equal(one[0], found[0])


def test_many_tokens_of_an_expert_and_none_of_others(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More pairs than fit the small search; weights of experts nobody goes to are not read."""
    case = case_of(device, ("Q8_0", "Q8_0"), (32, 32), None)
    monkeypatch.setattr(moe_few, "_FEW_PAIRS", 16)
    monkeypatch.setattr(moe_few, "MOST_TOKENS", tokens := 7)
    inner, outer = case.few.inner.planes, case.few.outer.planes
    for planes, rows in ((inner, 64), (outer, 32)):
        planes.scales[rows : 2 * rows] = float("nan")
    logits = noise(tokens, NUM_EXPERTS, seed=3).to(device)
    logits[:, 0] += 9.0
    logits[:, 1] -= 50.0
    router = router_of(Says(logits), device)
    hidden = noise(tokens, 32, seed=6).to(device)
    whole = case.few(hidden.clone(), case.norm, router)
    assert whole.isfinite().all()
    assert router.loads[0] == tokens
    last = router_of(Says(logits[-1:]), device)
    assert torch.equal(whole[-1:], case.few(hidden[-1:].clone(), case.norm, last))


@pytest.mark.parametrize("has_gate", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_choosing_in_one_kernel(device: torch.device, dtype: torch.dtype, has_gate: bool) -> None:
    """Against its parts; more rows of the router than programs, in odd numbers."""
    num_experts, size, tokens = 9, 96, 3
    matrix = noise(num_experts + has_gate, size, seed=1).to(device, dtype)
    norm = NormWeight((1 + 0.2 * noise(size, seed=2)).to(device, dtype), EPS)
    hidden = (3 * noise(tokens, size, seed=3)).to(device, dtype)
    router = router_of(DeviceLinear(matrix, None), device, num_experts)
    arrivals = torch.zeros(moe_choose.MOST_TOKENS, dtype=torch.int32, device=device)
    for orders in ((False,), (True,), (False, True)):
        found = moe_choose.choose(hidden, norm, router, orders, arrivals)
        x, words = norm_and_quantise(hidden, norm, orders)
        routing, gate = router.choose(x)
        torch.testing.assert_close(x, rms_norm(hidden, norm.weight, EPS))
        scales, expected = (each[:, :, 16].view(torch.float32) for each in (found.words, words))
        torch.testing.assert_close(scales, expected, rtol=2e-3, atol=0.0)
        if device.type == "cpu":
            # On a GPU sums of other shapes are added in other orders.
            assert torch.equal(found.words, words)
        assert torch.equal(found.routing.experts, routing.experts)
        torch.testing.assert_close(found.routing.weights, routing.weights)
        assert (found.gate is None) == (gate is None)
        if found.gate is not None and gate is not None:
            torch.testing.assert_close(found.gate, gate)
        assert not arrivals.any()
    assert router.loads.sum() == 6 * tokens * CHOSEN
    assert not moe_choose.takes(router.gate, moe_choose.MOST_TOKENS + 1)
    assert not moe_choose.takes(DeviceLinear(matrix, matrix[:, 0]), 1)


def test_a_mixture_that_chooses_itself(device: torch.device) -> None:
    case = case_of(device, ("Q8_0", "Q8_0"), (32, 32), ("Q8_0", "Q8_0", 32))
    hidden = noise(2, 32, seed=6).to(device)
    gate = DeviceLinear(noise(NUM_EXPERTS + 1, 32, seed=8).to(device), None)
    logits = gate(rms_norm(hidden, case.norm.weight, EPS))
    found = case.few(hidden.clone(), case.norm, router_of(gate, device))
    said = case.few(hidden.clone(), case.norm, router_of(Says(logits), device))
    torch.testing.assert_close(found, said)
    # Of one token every program chooses, and experts are counted all the same.
    router = router_of(gate, device)
    alone = [case.few(hidden[row : row + 1].clone(), case.norm, router) for row in range(2)]
    assert torch.equal(torch.cat(alone), found)
    assert router.loads.sum() == 2 * CHOSEN


def test_a_token_chooses_alike_among_few_and_many(device: torch.device) -> None:
    """In the kernel of the logits or in one of its own; experts that are as likely included."""
    case = case_of(device, ("Q8_0", "Q8_0"), (32, 32), ("Q8_0", "Q8_0", 32))
    matrix = noise(NUM_EXPERTS + 1, 32, seed=8)
    matrix[1:NUM_EXPERTS:2] = matrix[: NUM_EXPERTS - 1 : 2]
    router = router_of(DeviceLinear(matrix.to(device), None), device)
    hidden = noise(6, 32, seed=6).to(device)
    many = case.few(hidden.clone(), case.norm, router)
    few = torch.cat([case.few(part.clone(), case.norm, router) for part in hidden.split((4, 1, 1))])
    assert torch.equal(many, few)


def test_what_cannot_be_fused_says_why(
    device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    planes, _ = planes_of("Q8_0", 64, 32, device, 0)
    plain = DeviceLinear(noise(64, 32).to(device), None)
    experts = QuantExperts(
        planes_of("Q8_0", NUM_EXPERTS * 64, 32, device, 1)[0],
        planes_of("Q8_0", NUM_EXPERTS * 32, 32, device, 2)[0],
        NUM_EXPERTS,
        silu_and_mul,
    )
    moe_fuse._say.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _layer in range(2):
            assert few_tokens(experts, plain, plain, router_of(plain, device)) is None
        assert few_tokens(plain, None, None, router_of(plain, device)) is None  # type: ignore[arg-type]
    assert caplog.text.count("the shared expert is not quantised") == 1
    assert "experts are not quantised" in caplog.text
    two = TritonQuantLinear([planes, planes], None)
    assert two.planes is None


def test_what_32_bits_cannot_count_is_not_fused(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    experts = QuantExperts(
        planes_of("Q8_0", NUM_EXPERTS * 64, 32, device, 1)[0],
        planes_of("Q8_0", NUM_EXPERTS * 32, 32, device, 2)[0],
        NUM_EXPERTS,
        silu_and_mul,
    )
    router = router_of(DeviceLinear(noise(NUM_EXPERTS, 32).to(device), None), device)
    words = experts.outer.planes.codes.numel()
    moe_fuse._say.cache_clear()
    monkeypatch.setattr(moe_fuse, "_MOST_WORDS", words + 1)
    assert few_tokens(experts, None, None, router) is not None
    monkeypatch.setattr(moe_fuse, "_MOST_WORDS", words)
    with caplog.at_level(logging.WARNING):
        assert few_tokens(experts, None, None, router) is None
    assert "larger than 32 bits can count" in caplog.text


def test_a_kernel_that_does_not_start_is_not_used(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The variants are launched once when a model is built; one that fails leaves the old way."""
    experts = QuantExperts(
        planes_of("Q8_0", NUM_EXPERTS * 64, 32, device, 1)[0],
        planes_of("Q8_0", NUM_EXPERTS * 32, 32, device, 2)[0],
        NUM_EXPERTS,
        silu_and_mul,
    )
    gate = DeviceLinear(noise(NUM_EXPERTS, 32).to(device), None)
    router, launched = router_of(gate, device), list[int]()

    def launch(self: FewTokens, hidden: torch.Tensor, *_: object) -> torch.Tensor:
        launched.append(len(hidden))
        if len(hidden) > 1:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return hidden

    monkeypatch.setattr(FewTokens, "__call__", launch)
    monkeypatch.setattr(probe, "INTERPRETED", False)
    monkeypatch.setattr(probe, "_known", {})
    with caplog.at_level(logging.WARNING):
        assert few_tokens(experts, None, None, router) is None
        assert few_tokens(experts, None, None, router) is None
    assert launched == [1, 2]
    monkeypatch.undo()
    monkeypatch.setattr(probe, "INTERPRETED", False)
    monkeypatch.setattr(probe, "_known", {})
    monkeypatch.setattr(moe_few, "MOST_TOKENS", 3)
    monkeypatch.setattr(moe_fuse, "TILINGS", TILINGS)
    assert few_tokens(experts, None, None, router) is not None
    assert not router.loads.any()
    assert list(probe._known.values()) == [None]
    assert "does not work here: out of resource: shared memory" in caplog.text


def test_a_probe_tells_compilers_from_memory() -> None:
    def fails(error: Exception) -> None:
        raise error

    found = probe.failure_of(lambda: fails(RuntimeError("PassManager::run failed\nmore")))
    assert found == "a kernel does not work here: PassManager::run failed"
    found = probe.failure_of(lambda: fails(KeyError("launch_pdl")))
    assert found == "a kernel does not work here: 'launch_pdl'"
    assert probe.failure_of(lambda: None) is None
    with pytest.raises(RuntimeError, match="allocate"):
        probe.failure_of(lambda: fails(RuntimeError("can't allocate memory")))


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0"])
def test_a_trial_on_random_experts(device: torch.device, kind: str) -> None:
    """Passes where kernels are right, with and without a shared expert."""
    columns = QUANT_FORMATS[kind].column_multiple
    stacks = [
        PlanesOfExperts(random_planes(QUANT_FORMATS[kind], rows, columns, device), count)
        for rows, count in ((6 * columns, 3), (3 * columns, 3), (2 * columns, 1), (columns, 1))
    ]
    arrivals = torch.zeros(moe_choose.MOST_TOKENS, dtype=torch.int32, device=device)
    few = FewTokens(*stacks, arrivals, (SMALL, SMALL))  # type: ignore[arg-type]
    moe_trial.try_mixture(few, 3, torch.float32)


def test_a_trial_finds_wrong_and_changing_results(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks = [
        PlanesOfExperts(random_planes(QUANT_FORMATS["Q8_0"], rows, 32, device), 2)
        for rows in (128, 64)
    ]
    arrivals = torch.zeros(moe_choose.MOST_TOKENS, dtype=torch.int32, device=device)
    few = FewTokens(stacks[0], stacks[1], None, None, arrivals, (SMALL, SMALL))
    call = FewTokens.__call__
    monkeypatch.setattr(FewTokens, "__call__", lambda *args: call(*args) * 1.1)
    with pytest.raises(probe.TrialError, match="of its norm off"):
        moe_trial.try_mixture(few, 2, torch.float32)
    calls: list[int] = []

    def changing(*args: Any) -> torch.Tensor:
        calls.append(1)
        return call(*args) + 1e-6 * len(calls)

    monkeypatch.setattr(FewTokens, "__call__", changing)
    with pytest.raises(probe.TrialError, match="from time to time"):
        moe_trial.try_mixture(few, 2, torch.float32)


def test_more_than_a_few_tokens_have_a_kernel_of_their_own(device: torch.device) -> None:
    """Where it serves, and only those."""
    case = case_of(device, ("Q8_0", "Q8_0"), (32, 32), ("Q8_0", "Q8_0", 32))
    few = replace(case.few, many=SimpleNamespace(add=lambda hidden, *_: hidden.fill_(16.0)))  # type: ignore[arg-type]
    router = router_of(DeviceLinear(noise(NUM_EXPERTS + 1, 32, seed=8).to(device), None), device)
    hidden = noise(5, 32, seed=6).to(device)
    assert (few(hidden.clone(), case.norm, router) == 16.0).all()
    assert not (few(hidden[:4].clone(), case.norm, router) == 16.0).any()


@pytest.mark.parametrize(("tokens", "parts"), [(5, [5]), (16, [16]), (17, [9, 8]), (64, [16] * 4)])
def test_more_tokens_go_in_even_parts(device: torch.device, tokens: int, parts: list[int]) -> None:
    """Each row once, and never as few as those whose last bits are others."""
    seen: list[int] = []

    def add(hidden: torch.Tensor, *_: object) -> torch.Tensor:
        seen.append(len(hidden))
        return hidden.add_(1.0)

    case = case_of(device, ("Q8_0", "Q8_0"), (32, 32), None)
    few = replace(case.few, many=SimpleNamespace(add=add))  # type: ignore[arg-type]
    assert (case.few.most_tokens, few.most_tokens) == (16, 64)
    hidden = torch.zeros(tokens, 32, device=device)
    router = router_of(Says(torch.zeros(tokens, NUM_EXPERTS)), device)
    assert few(hidden, case.norm, router) is hidden
    assert seen == parts
    assert hidden.eq(1.0).all()
