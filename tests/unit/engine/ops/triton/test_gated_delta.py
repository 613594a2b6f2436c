"""Gated DeltaNet's kernels against the recurrence in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.cuda import delta_rows
from luce.engine.ops.cuda.delta_rows import RowsKernel
from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState, StateBatch
from luce.engine.ops.triton import gated_delta as gated_delta_module
from luce.engine.ops.triton import gated_delta_step, probe
from luce.engine.ops.triton.gated_delta import DeviceGatedDelta, stepwise_gated_delta
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.quant_planes import repack
from luce.testing.quant_blocks import random_blocks

SHAPE = DeltaShape(2, 4, 16, 24, 4, is_tiled=False)
POISON = 1e4
BOUND = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def gated_delta(
    projected: torch.Tensor,
    shape: DeltaShape,
    weights: DeltaWeights,
    state: LayerState,
    batch: StateBatch,
) -> torch.Tensor:
    """The operation, which leaves its counters as it found them."""
    op = DeviceGatedDelta(5, projected.device)
    found = op(projected, shape, weights, state, batch)
    assert not op._one_token.arrivals.any()
    return found


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights_of(shape: DeltaShape, device: torch.device, dtype: torch.dtype) -> DeltaWeights:
    heads = shape.num_value_heads
    return DeltaWeights(
        conv=noise(shape.channels, shape.conv_width, seed=1).to(device, dtype),
        decay=-noise(heads, seed=2).exp().to(device),
        dt_bias=noise(heads, seed=3).to(device),
        norm=(1 + 0.2 * noise(shape.value_head_dim, seed=4)).to(device, dtype),
        eps=1e-6,
    )


def state_of(shape: DeltaShape, device: torch.device, dtype: torch.dtype) -> LayerState:
    """Seven slots in two layers of which this is the second, so rows are strided."""
    conv = torch.full((7, 2, shape.conv_elements), POISON)
    recurrent = torch.full((7, 2, shape.recurrent_elements), POISON)
    conv[:, 1] = noise(7, shape.conv_elements, seed=5)
    recurrent[:, 1] = noise(7, shape.recurrent_elements, seed=6)
    return LayerState(conv.to(device, dtype)[:, 1], recurrent.to(device)[:, 1])


def batch_of(slots: list[int], lens: list[int], device: torch.device) -> StateBatch:
    def moved(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    starts = [sum(lens[:index]) for index in range(len(lens) + 1)]
    num_decode = next((i for i, count in enumerate(lens) if count != 1), len(lens))
    tensors = AttentionTensors(
        block_tables=moved([0]),
        rows=moved(slots),
        context_lens=moved(lens),
        query_starts=moved(starts),
        num_decode=num_decode,
        max_queries=max(lens[num_decode:], default=0),
    )
    return StateBatch((), (), tensors)


def oracle(
    projected: torch.Tensor,
    shape: DeltaShape,
    weights: DeltaWeights,
    conv: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One sequence in float64: results, and both states after it."""
    wide = projected.double().cpu()
    hk, hv, dk, dv = (
        shape.num_key_heads, shape.num_value_heads, shape.key_head_dim, shape.value_head_dim
    )  # fmt: skip
    inputs, z, beta, a = wide.split([shape.channels, hv * dv, hv, hv], 1)
    tail = conv.double().cpu().view(-1, shape.channels)
    window = torch.cat([tail, inputs])
    taps = weights.conv.double().cpu()
    state = state.double().cpu().view(hv, dk, dv).clone()
    out = []
    for t in range(len(wide)):
        mixed = (window[t : t + shape.conv_width].t() * taps).sum(1)
        mixed = mixed * mixed.sigmoid()
        q, k = mixed[: 2 * hk * dk].view(2, hk, dk)
        q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() / dk**0.5
        k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        v = mixed[2 * hk * dk :].view(hv, dv)
        which = [h % hk if shape.is_tiled else h // (hv // hk) for h in range(hv)]
        q, k = q[which], k[which]
        speed = torch.nn.functional.softplus(a[t] + weights.dt_bias.double().cpu())
        g = weights.decay.double().cpu() * speed
        state *= g.exp()[:, None, None]
        e = (v - torch.einsum("hkv,hk->hv", state, k)) * beta[t].sigmoid()[:, None]
        state += k[:, :, None] * e[:, None, :]
        o = torch.einsum("hkv,hk->hv", state, q)
        o = o / (o.square().mean(-1, keepdim=True) + weights.eps).sqrt()
        gate = z[t].view(hv, dv)
        out.append((o * weights.norm.double().cpu() * gate * gate.sigmoid()).flatten())
    return torch.stack(out), window[len(wide) :].flatten(), state.flatten()


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.isfinite().all()
    return ((found.double().cpu() - expected).norm() / expected.norm()).item()


def check(
    shape: DeltaShape,
    lens: list[int],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    spread: float = 1.0,
) -> None:
    """All sequences of a step against the oracle; no other slot changes."""
    weights, state = weights_of(shape, device, dtype), state_of(shape, device, dtype)
    old_conv, old = state.conv.clone(), state.recurrent.clone()
    slots = [4, 0, 6, 2, 5][: len(lens)]
    projected = (noise(sum(lens), shape.projected_size, seed=7) * spread).to(device, dtype)
    found = gated_delta(projected, shape, weights, state, batch_of(slots, lens, device))
    assert found.dtype == dtype
    start = 0
    for slot, count in zip(slots, lens, strict=True):
        part = slice(start, start + count)
        expected, conv, recurrent = oracle(
            projected[part], shape, weights, old_conv[slot], old[slot]
        )
        assert error(found[part], expected) < BOUND[dtype]
        assert error(state.recurrent[slot], recurrent) < BOUND[dtype]
        assert torch.equal(state.conv[slot].double().cpu(), conv)
        start += count
    others = [slot for slot in range(7) if slot not in slots]
    assert torch.equal(state.recurrent[others], old[others])
    assert torch.equal(state.conv[others], old_conv[others])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("tiled", [False, True])
def test_one_token_each(device: torch.device, dtype: torch.dtype, tiled: bool) -> None:
    check(replace(SHAPE, is_tiled=tiled), [1, 1, 1], device, dtype)


def test_one_token_each_kernel_by_kernel(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where heads are too many or too large for one kernel, which is said."""
    monkeypatch.setattr(gated_delta_step, "_MOST_STATE", 16 * 16)
    check(SHAPE, [1, 1, 5], device)
    assert "made for states of up to 256 numbers a head" in caplog.text


def test_many_of_one_token_each_are_advanced_kernel_by_kernel(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_wanted(*_: Any) -> None:
        raise AssertionError("so many do not go into one kernel")

    monkeypatch.setattr(gated_delta_step.OneTokenKernel, "__call__", not_wanted)
    monkeypatch.setattr(gated_delta_module, "MOST_LANES", 2)
    check(SHAPE, [1, 1, 1], device)
    with pytest.raises(AssertionError, match="so many"):
        check(SHAPE, [1, 1], device)


def test_one_kernel_that_does_not_start_is_not_used(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe, "INTERPRETED", False)
    facts = "gated_delta_step", SHAPE, torch.float32
    monkeypatch.setattr(probe, "_known", {facts: "no registers"})
    check(SHAPE, [1, 1], device)
    assert "states are advanced kernel by kernel: no registers" in caplog.text
    monkeypatch.setattr(probe, "_known", {})
    check(SHAPE, [1, 1], device)
    assert probe._known == {facts: None}
    # One that gives wrong results is left out, too.
    monkeypatch.setattr(probe, "_known", {})
    call = gated_delta_step.OneTokenKernel.__call__

    def wrong(*args: Any) -> None:
        call(*args)
        args[4].recurrent.mul_(1.1)

    monkeypatch.setattr(gated_delta_step.OneTokenKernel, "__call__", wrong)
    check(SHAPE, [1, 1], device)
    assert "a state advanced in one kernel is 1.0e-01 off" in caplog.text


def test_rows_of_their_own_kernel(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes all single tokens where there is one, unless it was wrong when it was tried."""
    lens, taken, gain = [1, 1, 1, 5], list[int](), 1.0

    def advance(kernel: RowsKernel, *args: Any) -> None:
        projected, shape, weights, state, tensors, out = args
        lanes = tensors.num_decode
        singles = replace(tensors, rows=tensors.rows[:lanes])
        out[:lanes] = stepwise_gated_delta(projected[:lanes], shape, weights, state, singles)
        state.recurrent.mul_(gain)
        taken.append(lanes)

    monkeypatch.setattr(RowsKernel, "__call__", advance)
    monkeypatch.setattr(delta_rows, "refusal", lambda *_: None)
    monkeypatch.setattr(gated_delta_module, "kernel_refusal", lambda: None)
    monkeypatch.setattr(gated_delta_module, "_TRIAL_TOKENS", 2)
    monkeypatch.setattr(probe, "INTERPRETED", True)
    check(SHAPE, lens, device)
    assert taken == [3]
    monkeypatch.setattr(probe, "INTERPRETED", False)
    monkeypatch.setattr(probe, "_known", {})
    check(SHAPE, lens, device)
    assert taken[1:] == [2, 2, 3]
    gain = 1.1
    monkeypatch.setattr(probe, "_known", {})
    check(SHAPE, lens, device)
    assert len(taken) == 5
    assert "a state advanced in one kernel is 1.0e-01 off" in caplog.text


def test_heads_of_128(device: torch.device) -> None:
    """Which a kernel of CUDA C++ is made for; the interpreter does not multiply bfloat16."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    check(DeltaShape(2, 4, 128, 128, 4, is_tiled=True), [1, 1, 1], device, dtype)


@pytest.mark.parametrize("lens", [[1, 2, 1, 67], [63], [64, 3], [130]])
def test_runs_of_tokens(device: torch.device, lens: list[int]) -> None:
    check(SHAPE, lens, device)


def test_key_heads_of_tiled_values_in_runs(device: torch.device) -> None:
    check(DeltaShape(2, 6, 20, 8, 4, is_tiled=True), [1, 70], device)


@pytest.mark.parametrize("width", [1, 2, 6])
def test_widths_of_the_convolution(device: torch.device, width: int) -> None:
    check(replace(SHAPE, conv_width=width), [1, 1, 3], device)


def test_narrow_types_in_runs(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("float16 overflows on a GPU, where hybrids refuse it")
    check(SHAPE, [1, 100], device, torch.float16)


def test_decay_of_large_steps_neither_overflows_nor_vanishes_early(device: torch.device) -> None:
    check(SHAPE, [80], device, spread=8.0)


def test_equal_tokens_do_not_cancel(device: torch.device) -> None:
    """Keys that are all alike make powers of the triangle grow as binomials do."""
    shape = replace(SHAPE, conv_width=1)
    weights, state = (
        weights_of(shape, device, torch.float32),
        state_of(shape, device, torch.float32),
    )
    weights = replace(weights, decay=weights.decay * 1e-3)
    old = state.recurrent[3].clone()
    one = noise(1, shape.projected_size, seed=9)
    one[:, -2 * shape.num_value_heads : -shape.num_value_heads] = 4.0
    projected = one.repeat(128, 1).to(device)
    found = gated_delta(projected, shape, weights, state, batch_of([3], [128], device))
    expected, _, recurrent = oracle(projected, shape, weights, state.conv[3], old)
    assert error(found, expected) < 1e-4
    assert error(state.recurrent[3], recurrent) < 1e-4


@pytest.mark.parametrize("cut", [1, 63, 64, 100])
def test_a_run_in_two_steps(device: torch.device, cut: int) -> None:
    weights = weights_of(SHAPE, device, torch.float32)
    whole, parts = (state_of(SHAPE, device, torch.float32) for _ in range(2))
    projected = noise(130, SHAPE.projected_size, seed=8).to(device)
    expected = gated_delta(projected, SHAPE, weights, whole, batch_of([1], [130], device))
    first = gated_delta(projected[:cut], SHAPE, weights, parts, batch_of([1], [cut], device))
    second = gated_delta(projected[cut:], SHAPE, weights, parts, batch_of([1], [130 - cut], device))
    assert error(torch.cat([first, second]), expected.double().cpu()) < 1e-5
    assert error(parts.recurrent[1], whole.recurrent[1].double().cpu()) < 1e-5
    if cut == 64:
        assert torch.equal(parts.recurrent, whole.recurrent)


@pytest.mark.parametrize("lens", [[1], [70]])
def test_a_row_does_not_depend_on_the_others(device: torch.device, lens: list[int]) -> None:
    weights = weights_of(SHAPE, device, torch.float32)
    alone, among = (state_of(SHAPE, device, torch.float32) for _ in range(2))
    mine = noise(lens[0], SHAPE.projected_size, seed=8).to(device)
    others = noise(3, SHAPE.projected_size, seed=9).to(device)
    expected = gated_delta(mine, SHAPE, weights, alone, batch_of([1], lens, device))
    tokens = torch.cat([others[:1], mine, others[1:]])
    batch = batch_of([5, 1, 0], [1, *lens, 2], device)
    found = gated_delta(tokens, SHAPE, weights, among, batch)
    assert torch.equal(found[1 : 1 + lens[0]], expected)
    assert torch.equal(among.recurrent[1], alone.recurrent[1])
    assert torch.equal(among.conv[1], alone.conv[1])


@pytest.mark.parametrize("kind", ["Q4_K", "IQ4_NL", "Q6_K"])
def test_results_as_the_product_behind_wants_them(device: torch.device, kind: str) -> None:
    """Two single tokens, by words and by the numbers; each alone has the same bits."""
    shape = replace(SHAPE, key_head_dim=32, value_head_dim=64, is_tiled=True)
    raw = random_blocks(kind, 8, 256, torch.Generator().manual_seed(1))
    output = TritonQuantLinear([repack(kind, raw.to(device), 8, 256)], None)
    weights = weights_of(shape, device, torch.float32)
    projected, op = noise(2, shape.projected_size, seed=7).to(device), DeviceGatedDelta(5, device)
    ours, theirs, alone = (state_of(shape, device, torch.float32) for _ in range(3))
    batch, hidden = batch_of([1, 3], [1, 1], device), noise(2, 8, seed=8).to(device)
    expected = output.add_to(hidden.clone(), op(projected, shape, weights, theirs, batch))
    layer = shape, weights
    found = op.add_product(hidden.clone(), projected, layer, (ours, batch), output)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(ours.conv, theirs.conv)
    torch.testing.assert_close(ours.recurrent, theirs.recurrent)
    assert not op._one_token.arrivals.any()
    one = batch_of([3], [1], device)
    last = op.add_product(hidden[1:].clone(), projected[1:], layer, (alone, one), output)
    assert torch.equal(last, found[1:])


@pytest.mark.parametrize("compiles", [False, True])
def test_words_without_the_kernel_of_one_processor(
    device: torch.device,
    compiles: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where it cannot be compiled, or is wrong, the one for all makes the words, which is said
    once.
    """
    shape = replace(SHAPE, key_head_dim=32, value_head_dim=32)
    tries = []

    def fails(*args: Any, **options: Any) -> None:
        tries.append(args)
        if not compiles:
            raise RuntimeError("no compiler")
        (words, squares), arrivals = args[3], args[4]
        words.fill_(1)
        squares.fill_(1.0)
        arrivals.fill_(1)

    monkeypatch.setattr(gated_delta_step, "kernel_refusal", lambda: None)
    monkeypatch.setattr(gated_delta_step.delta_words, "refusal", lambda *_: None)
    monkeypatch.setattr(gated_delta_step.delta_words, "advance", fails)
    monkeypatch.setattr(probe, "INTERPRETED", False)
    monkeypatch.setattr(probe, "_known", {})
    raw = random_blocks("Q6_K", 8, 256, torch.Generator().manual_seed(1))
    shape = replace(shape, num_value_heads=8)
    output = TritonQuantLinear([repack("Q6_K", raw.to(device), 8, 256)], None)
    weights, state = (
        weights_of(shape, device, torch.float32),
        state_of(shape, device, torch.float32),
    )
    op, batch = DeviceGatedDelta(5, device), batch_of([1], [1], device)
    projected = noise(1, shape.projected_size, seed=7).to(device)
    for _ in range(2):
        hidden = torch.zeros(1, 8, device=device)
        op.add_product(hidden, projected, (shape, weights), (state, batch), output)
        assert hidden.norm() > 0
    assert len(tries) == 1
    said = "a product of a state's words" if compiles else "no compiler"
    assert f"a kernel does not work here: {said}" in caplog.text
    assert not op._one_token.arrivals.any(), "counters are left as they were"
