"""How many KV blocks a GPU holds beside a model: measured on the model, not estimated.

The model runs its largest steps and captures its largest decode step over a cache of the null
block alone. What that takes, and some room for what varies, is left free; the cache gets the
rest, as far as it was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from luce.engine.device import Device, free_bytes, peak_bytes, release_cached
from luce.engine.device_executor import DeviceExecutor
from luce.engine.options import EngineInfo, EngineOptions
from luce.engine.runner import Runner
from luce.errors import PlacementError
from luce.kv.spec import KVSpec
from luce.sizing.model_sizes import Sizing
from luce.sizing.steps import STEP_MARGIN_BYTES
from luce.units import format_bytes


@dataclass(frozen=True, slots=True)
class StepMemory:
    """What steps take on the device beside weights and cache.

    Attributes:
        eager_bytes: peak of the largest steps.
        graph_bytes: memory all captured steps hold.
    """

    eager_bytes: int
    graph_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.eager_bytes + self.graph_bytes + STEP_MARGIN_BYTES

    @property
    def summary(self) -> str:
        """For people."""
        eager, captured = self.eager_bytes + STEP_MARGIN_BYTES, self.graph_bytes
        return f"steps {format_bytes(eager)}, captured steps {format_bytes(captured)}"


def measure_steps(
    runner: Runner, resolved: EngineInfo, device: Device, options: EngineOptions
) -> tuple[StepMemory, int]:
    """Run and capture the largest steps; returns what they take, and what is free then.

    Args:
        runner: over a cache that may hold the null block alone.
        resolved: the geometry to be.
        device: where.
        options: how many prompt tokens a step has, and a captured one.
    """
    steps = _measured(DeviceExecutor(runner, resolved, device.torch), device, options)
    # What was captured went with its executor.
    release_cached(device)
    return steps, free_bytes(device)


def _measured(executor: DeviceExecutor, device: Device, options: EngineOptions) -> StepMemory:
    eager = peak_bytes(device, lambda: executor.warm_up(options.chunk))
    release_cached(device)
    before = free_bytes(device)
    own = executor.capture_largest(options.captured_chunk)
    release_cached(device)
    # The smaller steps use the same pool; only what is their own adds up.
    return StepMemory(eager, max(0, before - free_bytes(device)) + own)


def fit_pool(
    sizing: Sizing, spec: KVSpec, options: EngineOptions, steps: StepMemory, free: int
) -> Sizing:
    """Shrink the KV pool to what fits beside the steps.

    Args:
        sizing: as estimated.
        spec: what a block takes.
        options: whether a pool was asked for.
        steps: what steps take.
        free: bytes free with the weights in place.

    Raises:
        PlacementError: the pool asked for does not fit, or not one sequence of `max_ctx` if
            none was.
    """
    fits = (free - steps.total_bytes) // spec.bytes_per_block - 1
    least = sizing.num_blocks
    if options.kv_pool_tokens is None:
        least = min(least, -(-sizing.max_ctx // spec.block_tokens))
    if fits < least:
        cache = (least + 1) * spec.bytes_per_block
        needed = format_bytes(cache + steps.total_bytes)
        raise PlacementError(
            f"not enough memory on {options.device}: {needed} needed beside the weights "
            f"({steps.summary}, KV cache {format_bytes(cache)}), {format_bytes(free)} free; "
            "lower --max-ctx, --max-concurrency or --kv-pool-tokens"
        )
    blocks = min(sizing.num_blocks, fits)
    return replace(sizing, num_blocks=blocks, kv_bytes=(blocks + 1) * spec.bytes_per_block)
