"""Runs steps on a GPU. Nothing here waits for the device but the reading of a step's tokens.

A step of decode rows alone replays a captured graph of the next larger size, whose lanes come and
whose tokens go by `step_ring`. A step with prompts is replayed too where one of `mixed_shapes` fits
it; its input is one small copy, its output another. Where a row has a mask, the step's choice is
made again from the logits that the graph left, while it still runs. Everything else runs kernel by
kernel.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from luce.engine.device import DeviceGraph, capture, graph_pool, upload, upload_into
from luce.engine.device_inputs import (
    StepShape,
    decode_batch,
    decode_lanes,
    mixed_step,
    step_numbers,
    step_of,
    upload_tables,
)
from luce.engine.device_rows import DeviceRows
from luce.engine.extras import NO_EXTRAS, SampledTokens, StepExtras
from luce.engine.mixed_shapes import fitting, mixed_shapes
from luce.engine.ops.triton.sampling import DeviceSampler, StepLogits
from luce.engine.options import EngineInfo
from luce.engine.pinned_slots import PinnedSlots
from luce.engine.runner import Runner
from luce.engine.sampling.masks import TokenMasks
from luce.engine.step_ring import StepRing
from luce.kv.spec import NULL_BLOCK, blocks_for
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.sizing.steps import GRAPH_BYTES, SHORT_PROMPT, padded_sizes, prompt_sizes

log = logging.getLogger(__name__)

GRAPH_STAGE = "graphs"

_FEW_TOKENS = 13
"""Of the least prompt that is tried: kernels of few rows are not those of dozens."""
_TRIAL_TOKENS = 128
"""Of a prompt whose launches are timed: too many for the kernels of few."""


@dataclass(frozen=True, slots=True)
class _CapturedStep:
    """A step of fixed shapes; n lines are sampled.

    Attributes:
        graph: reads the ring's lanes, or a mixed step's numbers, and writes `token_ids`.
        token_ids: i32 [n].
        logits: of the lines, with penalties and biases applied.
    """

    graph: DeviceGraph
    token_ids: torch.Tensor
    logits: StepLogits


class DeviceExecutor:
    """Executes checked plans on a device.

    Args:
        runner: the model and its cache.
        resolved: geometry.
        device: where.
    """

    def __init__(self, runner: Runner, resolved: EngineInfo, device: torch.device) -> None:
        self._runner = runner
        self._resolved = resolved
        self._device = device
        self._rows = DeviceRows(
            resolved.max_rows,
            resolved.max_ctx,
            resolved.block_tokens,
            resolved.vocab_size,
            device,
        )
        self._sampler = DeviceSampler(self._rows.params)
        self._slots = PinnedSlots(device)
        self._sizes = padded_sizes(resolved.max_rows)
        padding = self._rows.padding_row, 0, NULL_BLOCK, 0
        self._ring = StepRing(self._sizes[-1], padding, device)
        self._lanes = torch.zeros(self._sizes[-1], 4, dtype=torch.int32, device=device)
        self._captured: dict[int, _CapturedStep] = {}
        self._mixed: dict[StepShape, tuple[torch.Tensor, _CapturedStep]] = {}
        """Those with prompts, each with its numbers on the device."""
        self._quick_lines = 0
        self._pool: object = None

    def launch(self, plan: StepPlan, extras: StepExtras) -> Callable[[], SampledTokens]:
        """Start a step; the function returned waits for its tokens."""
        self._rows.start(plan.starts)
        is_read = self._rows.reads_histories(plan.starts, plan.items)
        if is_read:
            self._rows.bring_histories(plan.starts)
        self._runner.start_states(plan.starts)
        read = self._begin(plan.items, extras)
        self._runner.save_states(plan.items)
        # While the device computes: a long prompt's tokens take the host a tenth of a millisecond.
        if not is_read:
            self._rows.bring_histories(plan.starts)
        return read

    def forget_rows(self) -> None:
        """No row of before comes again; captured steps stay good."""
        self._rows.forget()

    @property
    def graph_bytes(self) -> int:
        """What the driver keeps for captured steps, beside PyTorch's memory."""
        return (len(self._captured) + len(self._mixed)) * GRAPH_BYTES

    def _begin(
        self, items: tuple[ScheduledSequence, ...], extras: StepExtras
    ) -> Callable[[], SampledTokens]:
        """Replay a captured step that does what these items ask for, or run it."""
        if not self._captured or not self._is_capturable(items, extras):
            return self._run(items, extras)
        # Decode rows come first.
        if not items[-1].token_ids and all(item.sample for item in items):
            return self._replay(items, extras)
        shape = None
        if self._mixed:
            shape = fitting(self._mixed, StepShape.of(items), self._quick_lines)
        if shape is None:
            return self._run(items, extras)
        return self._replay_mixed(shape, items, extras)

    def _is_capturable(self, items: tuple[ScheduledSequence, ...], extras: StepExtras) -> bool:
        if extras.tap is not None or self._rows.has_long_bias(item.row for item in items):
            return False
        # A graph leaves no raw logits of rows that it adjusts.
        if not extras.reporting_lines:
            return True
        sampled = [item.row for item in items if item.sample]
        return not self._rows.has_adjusted([sampled[line] for line in extras.reporting_lines])

    def _replay(
        self, items: tuple[ScheduledSequence, ...], extras: StepExtras
    ) -> Callable[[], SampledTokens]:
        count = len(items)
        size = next(size for size in self._sizes if size >= count)
        lanes = decode_lanes(items, self._resolved.block_tokens, size, self._rows.padding_row)
        self._ring.send(lanes)
        captured = self._captured[size]
        captured.graph.replay()
        read = self._ring.begin_read(count)
        return self._finish(captured, self._lanes[:count], extras, read)

    def _replay_mixed(
        self, shape: StepShape, items: tuple[ScheduledSequence, ...], extras: StepExtras
    ) -> Callable[[], SampledTokens]:
        numbers, captured = self._mixed[shape]
        upload_tables(items, self._rows)
        values = step_numbers(items, shape, self._resolved.block_tokens, self._rows.padding_row)
        self._slots.send(values, numbers)
        first, count = 4 * shape.decode, sum(item.sample for item in items)
        lanes = numbers[first : first + 4 * count].view(-1, 4)
        captured.graph.replay()
        return self._finish(captured, lanes, extras)

    def _finish(
        self,
        captured: _CapturedStep,
        lanes: torch.Tensor,
        extras: StepExtras,
        read: Callable[[], list[int]] | None = None,
    ) -> Callable[[], SampledTokens]:
        """What is left of a step that was replayed.

        Args:
            captured: it.
            lanes: those of its lines that are real, the first ones.
            extras: what the rows ask for.
            read: waits for the tokens, if they are on their way.
        """
        count = len(lanes)
        if not count:
            return SampledTokens
        logits, token_ids = captured.logits.first(count), captured.token_ids[:count]
        extras.look_at(logits.raw)
        masks = extras.masks()
        if masks is not None:
            self._mask(logits, masks)
            token_ids = self._sampler.choose(logits, lanes)
        elif read is not None:
            return extras.begin_readback(token_ids, lambda _: read)
        return extras.begin_readback(token_ids, self._slots.begin_read)

    def _run(
        self, items: tuple[ScheduledSequence, ...], extras: StepExtras
    ) -> Callable[[], SampledTokens]:
        step = mixed_step(items, self._rows, self._resolved.block_tokens)
        raw = self._runner.raw_logits(step.batch, extras.tap)
        if raw is None:
            return SampledTokens
        extras.look_at(raw)
        rows = [item.row for item in items if item.sample]
        if self._rows.has_long_bias(rows):
            raw = raw.float()
        logits = self._sampler.adjust(raw, step.lanes)
        self._rows.add_long_biases(logits.wide, rows)
        masks = extras.masks()
        if masks is not None:
            self._mask(logits, masks)
        token_ids = self._sampler.choose(logits, step.lanes)
        return extras.begin_readback(token_ids, self._slots.begin_read)

    def _mask(self, logits: StepLogits, masks: TokenMasks) -> None:
        lines = upload(np.array(masks.lines, dtype=np.int32), self._device)
        self._sampler.mask(logits, lines, upload(masks.words, self._device))

    # --- before serving ---------------------------------------------------------------------

    def warm_up(self, chunk: int) -> None:
        """Run the largest steps once, into the null block: kernels are built, memory is taken.

        And short prompts, whose kernels are tried as they are met: better now than while serving.
        """
        most = min(chunk, self._resolved.max_ctx)
        few = (
            (_prompt(0, min(each, most), self._resolved.block_tokens),)
            for each in (_FEW_TOKENS, SHORT_PROMPT)
        )
        for items in (*_largest_steps(self._resolved, chunk), *few):
            self._start_harmless(items)
            self._run(items, NO_EXTRAS)()

    def _start_harmless(self, items: Iterable[ScheduledSequence]) -> None:
        starts = [_harmless_start(item) for item in items]
        self._rows.start(starts)
        self._rows.bring_histories(starts)

    def capture_all(self, progress: Callable[[str, int, int], None]) -> None:
        """Capture a decode step of every padded size, the largest first; all share one pool."""
        self._pool = graph_pool()
        for done, size in enumerate(reversed(self._sizes)):
            progress(GRAPH_STAGE, done, len(self._sizes))
            self._captured[size] = self._capture(size, self._pool)
        self._ring.restart()
        progress(GRAPH_STAGE, len(self._sizes), len(self._sizes))

    def capture_mixed(self, chunk: int) -> None:
        """Capture steps with prompts, into the same pool; what cannot be captured runs kernel by
        kernel, as it always may.

        Args:
            chunk: most prompt tokens of one; 0: there are to be none.
        """
        if not chunk:
            return
        try:
            self._capture_largest_mixed(chunk)
            # The largest first: the others find all their memory in the pool.
            for shape in reversed(self._mixed_shapes(chunk)[:-1]):
                self._mixed[shape] = self._capture_mixed(shape, self._pool)
        except RuntimeError as error:
            extra = {"captured": len(self._mixed), "reason": str(error)}
            log.warning("steps with prompts are not captured", extra=extra)
        else:
            extra = {"captured": len(self._mixed), "quick_tokens": self._quick_lines}
            log.info("steps with prompts are captured", extra=extra)

    def capture_largest(self, chunk: int) -> int:
        """Capture the largest steps alone.

        Returns:
            What steps will take beside the memory that all share, the driver's, in bytes.
        """
        self._pool = graph_pool()
        self._captured[self._sizes[-1]] = self._capture(self._sizes[-1], self._pool)
        num_steps = len(self._sizes)
        if chunk:
            try:
                self._capture_largest_mixed(chunk)
            except RuntimeError as error:
                log.warning("steps with prompts cannot be captured", extra={"reason": str(error)})
            else:
                # All that the executor which serves may find worth it, by timings of its own.
                num_steps += len(prompt_sizes(self._resolved.max_rows, chunk))
        return num_steps * GRAPH_BYTES

    def _mixed_shapes(self, chunk: int) -> tuple[StepShape, ...]:
        rows, has_states = self._resolved.max_rows, self._resolved.state is not None
        return mixed_shapes(rows, chunk, self._quick_lines, has_states=has_states)

    def _capture_largest_mixed(self, chunk: int) -> None:
        """And see by it for how many tokens the device is done before the host."""
        self._quick_lines = 0
        shape = self._mixed_shapes(chunk)[-1]
        numbers, captured = self._capture_mixed(shape, self._pool)
        self._mixed[shape] = numbers, captured
        share = self._launch_seconds(chunk) / self._device_seconds(captured)
        self._quick_lines = int(shape.lines * share)

    def _device_seconds(self, captured: _CapturedStep) -> float:
        """What a step takes the device, of padding alone."""
        best = float("inf")
        for _ in range(3):
            began = time.perf_counter()
            captured.graph.replay()
            self._finish(captured, self._lanes[:1], NO_EXTRAS)()
            best = min(best, time.perf_counter() - began)
        return best

    def _launch_seconds(self, chunk: int) -> float:
        """What the host needs to launch a step with a prompt kernel by kernel."""
        tokens = min(chunk, self._resolved.max_ctx, _TRIAL_TOKENS)
        items = (_prompt(0, tokens, self._resolved.block_tokens),)
        self._start_harmless(items)
        best = float("inf")
        for _ in range(3):
            began = time.perf_counter()
            wait = self._run(items, NO_EXTRAS)
            best = min(best, time.perf_counter() - began)
            wait()
        return best

    def _capture_mixed(self, shape: StepShape, pool: object) -> tuple[torch.Tensor, _CapturedStep]:
        block_tokens, rows = self._resolved.block_tokens, self._rows
        padding = step_numbers((), shape, block_tokens, rows.padding_row)
        numbers = torch.empty(len(padding), dtype=torch.int32, device=self._device)
        upload_into(numbers, padding)
        left: list[StepLogits] = []
        graph, token_ids = capture(lambda: self._mixed_work(numbers, shape, left), pool)
        return numbers, _CapturedStep(graph, token_ids, left[0].lent())

    def _mixed_work(
        self, numbers: torch.Tensor, shape: StepShape, left: list[StepLogits]
    ) -> torch.Tensor:
        """The step with prompts to capture; leaves its logits in `left`."""
        step = step_of(numbers, shape, self._rows, self._resolved.block_tokens)
        raw = self._runner.raw_logits(step.batch)
        assert raw is not None, "some lines are sampled"
        logits, token_ids = self._sampler.adjust_and_choose(raw, step.lanes)
        left[:] = [logits]
        return token_ids

    def _capture(self, size: int, pool: object) -> _CapturedStep:
        self._ring.restart()
        left: list[StepLogits] = []
        graph, token_ids = capture(lambda: self._decode(size, left), pool)
        return _CapturedStep(graph, token_ids, left[0].lent())

    def _decode(self, size: int, left: list[StepLogits]) -> torch.Tensor:
        """The step to capture; leaves its logits in `left`."""
        lanes = self._lanes[:size]
        ring, lookup = self._ring.place, self._runner.step_tables
        batch = decode_batch(lanes, self._rows, self._resolved.block_tokens, lookup, ring)
        raw = self._runner.raw_logits(batch)
        assert raw is not None, "every lane is sampled"
        logits, token_ids = self._sampler.adjust_and_choose(raw, lanes, ring)
        left[:] = [logits]
        return token_ids


def _harmless_start(item: ScheduledSequence) -> RowStart:
    params = SamplingParams(max_tokens=1, temperature=1.0, top_k=2, top_p=0.5)
    return RowStart(item.row, params, 0, (0,), 1)


def _largest_steps(resolved: EngineInfo, chunk: int) -> Iterator[tuple[ScheduledSequence, ...]]:
    """The longest chunk behind decode rows in all others, then decode rows in all."""
    decode = tuple(
        ScheduledSequence(row, 0, (), (NULL_BLOCK,), sample=True)
        for row in range(resolved.max_rows)
    )
    chunk = min(chunk, resolved.max_ctx)
    yield (*decode[:-1], _prompt(resolved.max_rows - 1, chunk, resolved.block_tokens))
    yield decode


def _prompt(row: int, tokens: int, block_tokens: int) -> ScheduledSequence:
    """So many tokens in the null block."""
    table = (NULL_BLOCK,) * blocks_for(tokens, block_tokens)
    return ScheduledSequence(row, 0, (0,) * tokens, table, sample=True)
