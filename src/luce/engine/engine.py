"""The engine: token ids in, token ids out. Knows no text, no HTTP, no scheduling policy.

All methods belong to one thread. A step is planned elsewhere (`scheduler.plan`); the engine
checks it, runs it and hands back what was sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from luce.engine.device import (
    Device,
    begin_readback,
    dtype_name,
    free_bytes,
    is_out_of_memory,
    open_device,
    release_cached,
    resolve_dtype,
    use_threads,
)
from luce.engine.inputs import build_inputs
from luce.engine.kv_tensors import KVTensors
from luce.engine.models.registry import builder_for
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.select import OpRequest, OpSet, select_ops
from luce.engine.options import EngineInfo, EngineOptions
from luce.engine.plan_check import PlanCheck
from luce.engine.rows import RowState
from luce.engine.runner import Runner
from luce.engine.sampling.sampler import Sampler
from luce.engine.sizing import Sizing, size_engine
from luce.engine.warm_up import warm_up_batches
from luce.engine.weights import Progress, WeightReader
from luce.errors import DeviceOutOfMemory, InternalError, PlacementError
from luce.loaders.checkpoint import Checkpoint
from luce.loaders.opening import open_checkpoint
from luce.scheduler.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step that was launched; its tokens may still be on their way."""

    step: int
    _read: Callable[[], list[int]]

    def result(self) -> StepResult:
        """Wait for the sampled tokens.

        Raises:
            InternalError: the model produced logits that are not numbers.
        """
        token_ids = tuple(self._read())
        if any(token_id < 0 for token_id in token_ids):
            raise InternalError(
                f"step {self.step}: the model's logits are not finite numbers; its weights are "
                "damaged or too large for the chosen dtype"
            )
        return StepResult(self.step, token_ids)


class Engine:
    """A loaded model with its KV cache and rows.

    Attributes:
        resolved: the geometry it came out with.
    """

    def __init__(
        self, runner: Runner, rows: RowState, resolved: EngineInfo, device: Device, chunk: int
    ) -> None:
        self.resolved = resolved
        self._chunk = chunk
        self._runner = runner
        self._rows = rows
        self._device = device
        self._check = PlanCheck(resolved)

    @classmethod
    def load(cls, options: EngineOptions, progress: Progress) -> Engine:
        """Open a model file or folder and load it.

        Args:
            options: what and how large.
            progress: called with stage, bytes done and bytes in all.

        Raises:
            ModelFileError: the file is missing, damaged or not understood.
            UsageError: an option does not fit the model.
            PlacementError: there is no such device or it has too little memory.
        """
        device = open_device(options.device)
        return cls.from_checkpoint(open_checkpoint(options.path), options, progress, device)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        options: EngineOptions,
        progress: Progress,
        device: Device | None = None,
    ) -> Engine:
        """Load an opened checkpoint; see `load`."""
        device = device or open_device(options.device)
        dtype = resolve_dtype(options.dtype, device)
        use_threads(options.threads)
        build = builder_for(checkpoint.architecture)
        sizing = size_engine(options, checkpoint, dtype, device, free_bytes(device))
        hparams = checkpoint.hparams
        request = OpRequest(
            device=device.torch,
            dtype=dtype,
            heads=HeadShape(hparams.num_heads, hparams.num_kv_heads, hparams.head_dim),
            interleaved_rope=hparams.rope_layout == "interleaved",
        )
        try:
            with torch.inference_mode():
                ops = select_ops(request)
                reader = WeightReader(checkpoint, dtype, device.torch, progress)
                model = build(hparams, reader, ops, sizing.max_ctx)
                spec = model.kv_spec(options.block_tokens)
                kv = KVTensors(spec, sizing.num_blocks + 1, dtype, device.torch)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise _does_not_fit(sizing, device) from error
            raise
        release_cached(device)
        resolved = EngineInfo(
            architecture=checkpoint.architecture,
            device=device.name,
            dtype=dtype_name(dtype),
            max_ctx=sizing.max_ctx,
            kv_pool_tokens=sizing.num_blocks * options.block_tokens,
            num_blocks=sizing.num_blocks + 1,
            block_tokens=options.block_tokens,
            max_rows=options.max_concurrency,
            weights_bytes=model.nbytes,
            kv_bytes=kv.nbytes,
            vocab_size=model.vocab_size,
            kernels=_kernel_names(ops),
        )
        sampler = Sampler(
            options.max_concurrency, model.vocab_size, sizing.max_ctx, device.torch
        )
        rows = RowState(options.max_concurrency, sampler, device.torch)
        return cls(Runner(model, kv, ops.attention), rows, resolved, device, options.chunk)

    def warm_up(self) -> None:
        """Run the shapes to come once, into the null block, so that no request pays for it."""
        with torch.inference_mode():
            for batch in warm_up_batches(self.resolved, self._chunk, self._device.torch):
                self._runner.logits(batch)

    def step(self, plan: StepPlan) -> PendingStep:
        """Run a plan.

        Raises:
            InternalError: the plan makes no sense; nothing was changed.
            InvalidRequest: a new row's sampling parameters do not fit the model; as above.
            DeviceOutOfMemory: the step needs more memory than there is.
        """
        self._check.check(plan)
        try:
            with torch.inference_mode():
                self._rows.start(plan.starts)
                batch = build_inputs(
                    plan.items, self._rows, self.resolved.block_tokens, self._device.torch
                )
                sampled = self._runner.sample(batch, self._rows)
                read = begin_readback(sampled) if sampled is not None else list
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise DeviceOutOfMemory(f"step {plan.step}: {error}") from error
            raise InternalError(f"step {plan.step} failed: {error}") from error
        return PendingStep(plan.step, read)

    def close(self) -> None:
        """Give the memory back; the engine cannot be used any more."""
        del self._runner, self._rows
        release_cached(self._device)


def _does_not_fit(sizing: Sizing, device: Device) -> PlacementError:
    needed = sizing.weights_bytes + sizing.kv_bytes
    return PlacementError(f"not enough memory on {device.name}: {needed} bytes needed")


def _kernel_names(ops: OpSet) -> tuple[str, ...]:
    return tuple(f"{choice.op}={choice.chosen}" for choice in ops.choices)
