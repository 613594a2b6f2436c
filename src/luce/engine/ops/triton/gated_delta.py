"""`ops.gated_delta.GatedDelta` on a device: one token a sequence, or chunks of many.

States live in their slots in float32 and are advanced in place. A row of a step is the slot of
its sequence; lanes of padding have a slot that nobody reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl

from luce.engine.device import kernel_refusal
from luce.engine.ops.attention import AttentionTensors
from luce.engine.ops.cuda import delta_rows
from luce.engine.ops.gated_delta import DeltaShape, DeltaWeights, LayerState, StateBatch
from luce.engine.ops.linear import Linear
from luce.engine.ops.triton.causal_conv import convolve
from luce.engine.ops.triton.gated_delta_chunk import (
    DeltaStep,
    gate_of,
    key_head,
    log_decay,
    run_chunks,
)
from luce.engine.ops.triton.gated_delta_step import (
    MakesWords,
    OneTokenKernel,
    leaves_words,
    step_refusal,
)
from luce.engine.ops.triton.launching import direct
from luce.engine.ops.triton.numeric import LAUNCH, power_of_two, sigmoid, wait_for_inputs
from luce.engine.ops.triton.probe import TrialError, launch_refusal
from luce.engine.ops.triton.quant_linear import TritonQuantLinear

_log = logging.getLogger(__name__)

_MOST_APART = 2e-2
"""Of the norm: sums in another order, rounded to bfloat16."""
MOST_LANES = 16
"""Beyond, without `delta_rows`, a kernel each for convolution, state and norm is faster."""
_TRIAL_TOKENS = 9
_TRIAL_HEADS = 6
"""Of a block of threads: they take its rings of places, of up to three, round twice."""
_Advance = Callable[
    [torch.Tensor, DeltaShape, DeltaWeights, LayerState, AttentionTensors, torch.Tensor], None
]
"""`OneTokenKernel.__call__`."""
_NORM_HEADS = 8
_COLUMNS = 32
"""Of a state in one program: enough programs for one sequence, and no spilling."""


@direct
@triton.jit(do_not_specialize_on_alignment=["rows"])
def _step_kernel(
    mixed, projected, decay, dt_bias, states, rows, out, token_stride, state_stride,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, C: tl.constexpr,
    TILED: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Program (columns of the state, value head, lane): one token on."""
    head, lane = tl.program_id(1), tl.program_id(2).to(tl.int64)
    keys = tl.arange(0, BLOCK_K)
    values = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_key, in_value = keys < DK, values < DV
    within = in_key[:, None] & in_value[None, :]
    cells = keys[:, None] * DV + values[None, :]
    # The step's rows and this layer's state are older than some operation of PyTorch's in this
    # step, which no kernel overtakes: they may be read before the kernels ahead are done.
    store = states + tl.load(rows + lane).to(tl.int64) * state_stride + head * (DK * DV)
    state = tl.load(store + cells, mask=within, other=0.0)
    wait_for_inputs()
    line = projected + lane * token_stride + (C + HV * DV) + head
    beta = gate_of(tl.load(line))
    g = log_decay(tl.load(line + HV), tl.load(dt_bias + head), tl.load(decay + head))
    at = mixed + lane * C + key_head(head, HK, HV, TILED) * DK + keys
    q = tl.load(at, mask=in_key, other=0.0).to(tl.float32)
    k = tl.load(at + HK * DK, mask=in_key, other=0.0).to(tl.float32)
    value_at = mixed + lane * C + (2 * HK * DK + head * DV) + values
    v = tl.load(value_at, mask=in_value, other=0.0).to(tl.float32)
    state = state * tl.exp(g)
    error = beta * (v - tl.sum(k[:, None] * state, 0))
    state += k[:, None] * error[None, :]
    tl.store(store + cells, state, mask=within)
    o = tl.sum(q[:, None] * state, 0).to(out.dtype.element_ty)
    tl.store(out + lane * (HV * DV) + head * DV + values, o, mask=in_value)


@direct
@triton.jit
def _norm_kernel(
    out, projected, norm, eps, token_stride,
    HV: tl.constexpr, DV: tl.constexpr, C: tl.constexpr, HEADS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Program (token, some heads): norm and gate in place."""
    wait_for_inputs()
    token = tl.program_id(0).to(tl.int64)
    heads = (tl.program_id(1) * HEADS + tl.arange(0, HEADS))[:, None]
    values = tl.arange(0, BLOCK_V)[None, :]
    inside = (heads < HV) & (values < DV)
    at = out + token * (HV * DV) + heads * DV + values
    o = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    line = projected + token * token_stride + C + heads * DV + values
    z = tl.load(line, mask=inside, other=0.0)
    weight = tl.load(norm + values, mask=values < DV, other=0.0)
    scale = tl.rsqrt(tl.sum(o * o, 1) / DV + eps)
    # Rounded before the weight, as the reference rounds.
    normal = ((o * scale[:, None]).to(z.dtype) * weight).to(tl.float32)
    wide = z.to(tl.float32)
    tl.store(at, (normal * wide * sigmoid(wide)).to(out.dtype.element_ty), mask=inside)


class DeviceGatedDelta:
    """`ops.gated_delta.GatedDelta` for `projected` with contiguous rows.

    Args:
        lanes: most sequences of a step that have one token.
        device: where.
    """

    def __init__(self, lanes: int, device: torch.device) -> None:
        self._one_token = OneTokenKernel(lanes, device)
        self._rows = delta_rows.RowsKernel(self._one_token.arrivals)
        self._no_cuda = kernel_refusal()
        self._refused: set[DeltaShape] = set()

    def __call__(
        self,
        projected: torch.Tensor,
        shape: DeltaShape,
        weights: DeltaWeights,
        state: LayerState,
        batch: StateBatch,
    ) -> torch.Tensor:
        """Sequences of one token in one kernel, where there is one for them and few of them."""
        tensors = batch.tensors
        assert tensors is not None, "the step was not laid out on the device"
        lanes = tensors.num_decode
        advance = self._way(lanes, projected, shape, weights, state)
        if advance is None:
            return stepwise_gated_delta(projected, shape, weights, state, tensors)
        out = projected.new_empty(len(projected), shape.value_size)
        if lanes:
            advance(projected, shape, weights, state, tensors, out)
        if lanes < tensors.rows.shape[0]:
            mixed = convolve(projected, shape, weights.conv, state.conv, tensors, only_runs=True)
            step = DeltaStep(
                mixed, projected, shape, weights, state.recurrent, state.conv, tensors, out
            )
            run_chunks(step)
            _norm(out[lanes:], projected[lanes:], shape, weights)
        return out

    def _way(
        self,
        lanes: int,
        projected: torch.Tensor,
        shape: DeltaShape,
        weights: DeltaWeights,
        state: LayerState,
    ) -> _Advance | None:
        """How sequences of one token are advanced in one kernel, if so."""
        layer = projected, shape, weights, state
        if self._rows_refusal(*layer) is None and lanes <= delta_rows.MOST_LANES:
            return self._rows
        if lanes <= MOST_LANES and self._refusal(*layer) is None:
            return self._one_token
        return None

    def add_product(
        self,
        hidden: torch.Tensor,
        projected: torch.Tensor,
        weights: tuple[DeltaShape, DeltaWeights],
        states: tuple[LayerState, StateBatch],
        output: Linear,
    ) -> torch.Tensor:
        """See `ops.gated_delta.AddsProduct`: of a few single tokens, words go between both."""
        (shape, parameters), (state, batch) = weights, states
        tensors, order = batch.tensors, None
        if isinstance(output, TritonQuantLinear) and leaves_words(shape):
            order = output.order_of_parts(len(projected))
        is_single = tensors is not None and tensors.num_decode == len(projected)
        refused = order is None or not is_single
        if refused or self._refusal(projected, shape, parameters, state) is not None:
            return output.add_to(hidden, self(projected, shape, parameters, state, batch))
        assert isinstance(output, TritonQuantLinear)
        assert tensors is not None
        assert order is not None
        layer = shape, parameters, state
        for name, make in self._one_token.ways_to_words(projected, shape, state):
            facts = "delta_parts", name, shape, projected.dtype, order, *output.weight_facts
            attempt = partial(self._try_parts, make, hidden, projected, layer, output, order)
            if launch_refusal(facts, attempt) is None:
                return output.add_parts(hidden, make(projected, layer, tensors, order=order))
        return output.add_to(hidden, self(projected, shape, parameters, state, batch))

    def _try_parts(
        self,
        make: MakesWords,
        hidden: torch.Tensor,
        projected: torch.Tensor,
        layer: tuple[DeltaShape, DeltaWeights, LayerState],
        output: TritonQuantLinear,
        order: bool,
    ) -> None:
        """A token of a sequence that is not there, by words and by the product of numbers.

        Raises:
            TrialError: they differ.
        """
        shape, weights, state = layer
        generator, index = torch.Generator().manual_seed(1), torch.arange(2, dtype=torch.int32)

        def noise(like: torch.Tensor) -> torch.Tensor:
            return torch.randn(1, like.shape[1], generator=generator).to(like)

        token, conv, recurrent = noise(projected), noise(state.conv), noise(state.recurrent) * 0.1
        index = index.to(projected.device)
        tensors = AttentionTensors(index[None], index[:1], index[:1], index, 1, 0)
        mine, theirs = (LayerState(conv.clone(), recurrent.clone()) for _ in range(2))
        plain = self(token, shape, weights, mine, StateBatch((), (), tensors))
        expected = output.add_to(torch.zeros_like(hidden[:1]), plain).float()
        words = make(token, (shape, weights, theirs), tensors, order=order)
        found = output.add_parts(torch.zeros_like(hidden[:1]), words).float()
        pairs = (found, expected), (theirs.conv, mine.conv), (theirs.recurrent, mine.recurrent)
        for ours, other in pairs:
            apart = float((ours.float() - other.float()).norm() / other.float().norm())
            if not apart < _MOST_APART:
                # Who serves instead has the same counters.
                self._one_token.arrivals.zero_()
                raise TrialError(f"a product of a state's words, or the state, is {apart:.1e} off")

    def _refusal(
        self, projected: torch.Tensor, shape: DeltaShape, weights: DeltaWeights, state: LayerState
    ) -> str | None:
        """Why sequences of one token need several kernels; found out at the first step."""
        reason = step_refusal(shape)
        if reason is None:
            facts = "gated_delta_step", shape, projected.dtype
            trial = partial(self._try, projected, shape, weights, state, self._one_token, 1)
            reason = launch_refusal(facts, trial)
        if reason is not None and shape not in self._refused:
            self._refused.add(shape)
            _log.warning("states are advanced kernel by kernel: %s", reason)
        return reason

    def _rows_refusal(
        self, projected: torch.Tensor, shape: DeltaShape, weights: DeltaWeights, state: LayerState
    ) -> str | None:
        """Why `delta_rows` does not serve; found out at the first step."""
        reason = self._no_cuda or step_refusal(shape)
        reason = reason or delta_rows.refusal(shape, projected, weights, state)
        if reason is not None:
            return reason
        facts = "delta_rows", shape, projected.device
        return launch_refusal(facts, partial(self._try_rows, projected, shape, weights, state))

    def _try_rows(
        self, projected: torch.Tensor, shape: DeltaShape, weights: DeltaWeights, state: LayerState
    ) -> None:
        """Both cuts of it, with counters of their own.

        Raises:
            TrialError: results or states differ.
        """
        counters, units = (
            _TRIAL_TOKENS * heads for heads in (shape.num_key_heads, shape.num_value_heads)
        )
        arrivals = torch.zeros(counters, dtype=torch.int32, device=projected.device)
        for cut in delta_rows.CUTS:
            kernel = delta_rows.RowsKernel(arrivals, cut, max(1, units // _TRIAL_HEADS))
            self._try(projected, shape, weights, state, kernel, _TRIAL_TOKENS)

    def _try(
        self,
        projected: torch.Tensor,
        shape: DeltaShape,
        weights: DeltaWeights,
        state: LayerState,
        advance: _Advance,
        count: int,
    ) -> None:
        """So many tokens of sequences that are not there, against the separate kernels.

        Raises:
            TrialError: results or states differ.
        """
        device, generator = projected.device, torch.Generator().manual_seed(1)

        def noise(like: torch.Tensor, rows: int) -> torch.Tensor:
            return torch.randn(rows, like.shape[1], generator=generator).to(like)

        token = noise(projected, count)
        conv, recurrent = noise(state.conv, count + 1), noise(state.recurrent, count + 1) * 0.1
        index = torch.arange(count + 1, dtype=torch.int32, device=device)
        tensors = AttentionTensors(index[None], index[1:], index[1:], index, count, 0)
        out = token.new_empty(count, shape.value_size)
        mine, theirs = LayerState(conv.clone(), recurrent.clone()), LayerState(conv, recurrent)
        advance(token, shape, weights, mine, tensors, out)
        expected = stepwise_gated_delta(token, shape, weights, theirs, tensors)
        pairs = (out, expected), (mine.conv, conv), (mine.recurrent, recurrent)
        for ours, other in pairs:
            apart = (ours.float() - other.float()).norm() / other.float().norm()
            if not float(apart) < _MOST_APART:
                raise TrialError(f"a state advanced in one kernel is {float(apart):.1e} off")


def stepwise_gated_delta(
    projected: torch.Tensor,
    shape: DeltaShape,
    weights: DeltaWeights,
    state: LayerState,
    tensors: AttentionTensors,
) -> torch.Tensor:
    """The same kernel by kernel."""
    mixed = convolve(projected, shape, weights.conv, state.conv, tensors)
    out = projected.new_empty(len(projected), shape.value_size)
    step = DeltaStep(mixed, projected, shape, weights, state.recurrent, state.conv, tensors, out)
    if tensors.num_decode:
        _advance(step)
    if tensors.num_decode < tensors.rows.shape[0]:
        run_chunks(step)
    _norm(out, projected, shape, weights)
    return out


def _advance(step: DeltaStep) -> None:
    """The leading sequences, which have one token each; results before norm and gate."""
    mixed, projected, shape, tensors = step.mixed, step.projected, step.shape, step.tensors
    weights, states, out = step.weights, step.states, step.out
    block_k = power_of_two(shape.key_head_dim)
    columns = min(_COLUMNS, power_of_two(shape.value_head_dim))
    tiles = triton.cdiv(shape.value_head_dim, columns)
    _step_kernel[(tiles, shape.num_value_heads, tensors.num_decode)](
        mixed, projected, weights.decay, weights.dt_bias, states, tensors.rows, out,
        projected.stride(0), states.stride(0),
        HK=shape.num_key_heads, HV=shape.num_value_heads, DK=shape.key_head_dim,
        DV=shape.value_head_dim, C=shape.channels, TILED=shape.is_tiled,
        BLOCK_K=block_k, BLOCK_V=columns,
        num_warps=min(4, max(1, block_k * columns // 1024)), **LAUNCH,
    )  # fmt: skip


def _norm(
    out: torch.Tensor, projected: torch.Tensor, shape: DeltaShape, weights: DeltaWeights
) -> None:
    """Norm per head, then the gate, in place."""
    _norm_kernel[(len(out), triton.cdiv(shape.num_value_heads, _NORM_HEADS))](
        out, projected, weights.norm, weights.eps, projected.stride(0),
        HV=shape.num_value_heads, DV=shape.value_head_dim, C=shape.channels, HEADS=_NORM_HEADS,
        BLOCK_V=power_of_two(shape.value_head_dim), num_warps=2, **LAUNCH,
    )  # fmt: skip
