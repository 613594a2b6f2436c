"""Runs steps on a GPU. Nothing here waits for the device but the reading of a step's tokens.

A step of decode rows alone replays a captured graph of the next larger size; its input is one
small copy, its output another. Where a row has a mask, the step's choice is made again from the
logits that the graph left, while it still runs. Everything else runs kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from luce.engine.device import DeviceGraph, capture, graph_pool, upload
from luce.engine.device_inputs import decode_batch, decode_lanes, mixed_step
from luce.engine.device_rows import DeviceRows
from luce.engine.extras import NO_EXTRAS, SampledTokens, StepExtras
from luce.engine.ops.triton.sampling import DeviceSampler
from luce.engine.options import EngineInfo
from luce.engine.runner import Runner
from luce.engine.sampling.masks import TokenMasks
from luce.kv.spec import NULL_BLOCK, blocks_for
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence, StepPlan
from luce.sizing.steps import padded_sizes

GRAPH_STAGE = "graphs"


@dataclass(frozen=True, slots=True)
class _CapturedStep:
    """A decode step of a fixed number of lanes.

    Attributes:
        graph: reads the executor's lanes, writes `token_ids`.
        token_ids: i32 [lanes].
        logits: f32 [lanes, V], with penalties and biases applied.
    """

    graph: DeviceGraph
    token_ids: torch.Tensor
    logits: torch.Tensor


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
        self._sizes = padded_sizes(resolved.max_rows)
        self._lanes = torch.zeros(self._sizes[-1], 4, dtype=torch.int32, device=device)
        self._captured: dict[int, _CapturedStep] = {}

    def launch(self, plan: StepPlan, extras: StepExtras) -> Callable[[], SampledTokens]:
        """Start a step; the function returned waits for its tokens."""
        self._rows.start(plan.starts)
        self._runner.start_states(plan.starts)
        is_decode = all(item.sample and not item.token_ids for item in plan.items)
        is_captured = is_decode and bool(self._captured)
        can_replay = is_captured and self._is_capturable(plan.items, extras)
        read = (self._replay if can_replay else self._run)(plan.items, extras)
        self._runner.save_states(plan.items)
        return read

    def _is_capturable(self, items: tuple[ScheduledSequence, ...], extras: StepExtras) -> bool:
        rows = [item.row for item in items]
        if self._rows.has_long_bias(rows):
            return False
        # A graph leaves no raw logits of rows that it adjusts.
        return not self._rows.has_adjusted([rows[line] for line in extras.reporting_lines])

    def _replay(
        self, items: tuple[ScheduledSequence, ...], extras: StepExtras
    ) -> Callable[[], SampledTokens]:
        count = len(items)
        size = next(size for size in self._sizes if size >= count)
        lanes = decode_lanes(items, self._resolved.block_tokens, size, self._rows.padding_row)
        self._lanes[:size].copy_(upload(lanes, self._device), non_blocking=True)
        captured = self._captured[size]
        captured.graph.replay()
        logits, token_ids = captured.logits[:count], captured.token_ids[:count]
        extras.look_at(logits)
        masks = extras.masks()
        if masks is not None:
            self._mask(logits, masks)
            token_ids = self._sampler.choose(logits, self._lanes[:count])
        return extras.begin_readback(token_ids)

    def _run(
        self, items: tuple[ScheduledSequence, ...], extras: StepExtras
    ) -> Callable[[], SampledTokens]:
        step = mixed_step(items, self._rows, self._resolved.block_tokens)
        logits = self._runner.logits(step.batch, extras.tap)
        if logits is None:
            return SampledTokens
        extras.look_at(logits)
        self._sampler.adjust(logits, step.lanes)
        self._rows.add_long_biases(logits, step.batch.sampled_rows)
        masks = extras.masks()
        if masks is not None:
            self._mask(logits, masks)
        return extras.begin_readback(self._sampler.choose(logits, step.lanes))

    def _mask(self, logits: torch.Tensor, masks: TokenMasks) -> None:
        lines = upload(np.array(masks.lines, dtype=np.int32), self._device)
        self._sampler.mask(logits, lines, upload(masks.words, self._device))

    # --- before serving ---------------------------------------------------------------------

    def warm_up(self, chunk: int) -> None:
        """Run the largest steps once, into the null block: kernels are built, memory is taken."""
        for items in _largest_steps(self._resolved, chunk):
            self._rows.start([_harmless_start(item) for item in items])
            self._run(items, NO_EXTRAS)()

    def capture_all(self, progress: Callable[[str, int, int], None]) -> None:
        """Capture a decode step of every padded size, the largest first; all share one pool."""
        pool = graph_pool()
        for done, size in enumerate(reversed(self._sizes)):
            progress(GRAPH_STAGE, done, len(self._sizes))
            self._captured[size] = self._capture(size, pool)
        progress(GRAPH_STAGE, len(self._sizes), len(self._sizes))

    def capture_largest(self) -> int:
        """Capture the largest decode step alone; returns how many there are in all."""
        self._captured[self._sizes[-1]] = self._capture(self._sizes[-1], graph_pool())
        return len(self._sizes)

    def _capture(self, size: int, pool: object) -> _CapturedStep:
        padding = decode_lanes((), self._resolved.block_tokens, size, self._rows.padding_row)
        self._lanes[:size].copy_(upload(padding, self._device))
        left: list[torch.Tensor] = []
        graph, token_ids = capture(lambda: self._decode(size, left), pool)
        return _CapturedStep(graph, token_ids, left[0])

    def _decode(self, size: int, left: list[torch.Tensor]) -> torch.Tensor:
        """The step to capture; leaves its logits in `left`."""
        lanes = self._lanes[:size]
        logits = self._runner.logits(decode_batch(lanes, self._rows, self._resolved.block_tokens))
        assert logits is not None, "every lane is sampled"
        left[:] = [logits]
        return self._sampler.sample(logits, lanes)


def _harmless_start(item: ScheduledSequence) -> RowStart:
    params = SamplingParams(max_tokens=1, temperature=1.0, top_k=2, top_p=0.5)
    return RowStart(item.row, params, 0, (0,), 1)


def _largest_steps(resolved: EngineInfo, chunk: int) -> Iterator[tuple[ScheduledSequence, ...]]:
    """The longest chunk behind decode rows in all others, then decode rows in all."""
    chunk = min(chunk, resolved.max_ctx)
    table = (NULL_BLOCK,) * blocks_for(chunk, resolved.block_tokens)
    decode = tuple(
        ScheduledSequence(row, 0, (), (NULL_BLOCK,), sample=True)
        for row in range(resolved.max_rows)
    )
    tokens = tuple(np.zeros(chunk, dtype=np.int64).tolist())
    last = ScheduledSequence(resolved.max_rows - 1, 0, tokens, table, sample=True)
    yield (*decode[:-1], last)
    yield decode
