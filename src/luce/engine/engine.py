"""The engine: token ids in, token ids out. Knows no text, no HTTP, no scheduling policy.

All methods belong to one thread. A step is planned elsewhere (`scheduler.plan`); the engine
checks it, runs it and hands back what was sampled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from luce.engine.kv_tensors import HeadMajorKVTensors, KVTensors
from luce.engine.models.base import Model, Parameters
from luce.engine.models.registry import family_of
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.select import OpRequest, OpSet, select_ops
from luce.engine.options import EngineInfo, EngineOptions
from luce.engine.plan_check import PlanCheck
from luce.engine.rows import RowState
from luce.engine.runner import Runner
from luce.engine.sampling.sampler import Sampler
from luce.engine.sizing import Sizing, size_engine
from luce.engine.warm_up import one_token_plan, warm_up_batches
from luce.engine.weights import Progress, WeightReader
from luce.errors import DeviceOutOfMemory, InternalError, ModelFileError, PlacementError
from luce.kv.spec import KVSpec
from luce.loaders.hparams import HParams
from luce.loaders.opening import open_checkpoint
from luce.scheduler.plan import FAILED_TOKEN, StepPlan, StepResult
from luce.units import format_bytes

if TYPE_CHECKING:
    from luce.engine.device_executor import DeviceExecutor

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step that was launched; its tokens may still be on their way."""

    step: int
    _read: Callable[[], list[int]]

    def result(self) -> StepResult:
        """Wait for the sampled tokens.

        Raises:
            InternalError: the device failed.
        """
        try:
            return StepResult(self.step, tuple(self._read()))
        except RuntimeError as error:
            raise InternalError(f"step {self.step} failed on the device: {error}") from error


class Engine:
    """A loaded model with its KV cache and rows.

    Attributes:
        resolved: the geometry it came out with.
    """

    def __init__(self, blueprint: Blueprint, parameters: Parameters, progress: Progress) -> None:
        runner, resolved, ops = _assemble(blueprint, parameters)
        device = blueprint.device
        self.resolved = resolved
        self._path = blueprint.options.path
        self._chunk = blueprint.options.chunk
        self._runner = runner
        self._device = device
        self._check = PlanCheck(resolved)
        self._progress = progress
        sampler = Sampler(resolved.max_rows, resolved.vocab_size, resolved.max_ctx, device.torch)
        self._rows = RowState(resolved.max_rows, sampler, device.torch)
        self._executor = _executor(runner, resolved, device) if ops.is_on_device else None

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
        use_threads(options.threads)
        checkpoint = open_checkpoint(options.path)
        dtype = resolve_dtype(options.dtype, device)
        family = family_of(checkpoint.architecture)
        spec = family.kv_spec(checkpoint.hparams, options.block_tokens, dtype.itemsize)
        sizing = size_engine(options, checkpoint, spec, dtype, device, free_bytes(device))
        blueprint = Blueprint(
            checkpoint.architecture, checkpoint.hparams, options, device, dtype, sizing
        )
        reader = WeightReader(checkpoint, dtype, device.torch, progress)
        try:
            return cls(blueprint, reader, progress)
        finally:
            reader.close()

    def warm_up(self) -> None:
        """Run the shapes to come once, into the null block, so that no request pays for it.

        On a GPU also captures the decode steps.

        Raises:
            ModelFileError: the model computes no numbers.
            PlacementError: the device's memory does not hold them.
        """
        with torch.inference_mode():
            if self._executor is not None:
                self._warm_up_device(self._executor)
                return
            for batch in warm_up_batches(self.resolved, self._chunk, self._device.torch):
                logits = self._runner.logits(batch)
                if logits is not None and not bool(logits.isfinite().all()):
                    raise self._no_numbers()

    def _warm_up_device(self, executor: DeviceExecutor) -> None:
        try:
            executor.warm_up(self._chunk)
            if FAILED_TOKEN in executor.launch(one_token_plan())():
                raise self._no_numbers()
            executor.capture_all(self._progress)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise PlacementError(
                f"{self._device.name} ran out of memory while capturing decode steps; "
                f"{format_bytes(free_bytes(self._device))} free now; lower --max-concurrency, "
                "--chunk or --kv-pool-tokens"
            ) from error

    def _no_numbers(self) -> ModelFileError:
        return ModelFileError(
            f"{self._path}: the logits computed from its weights are not finite numbers; the "
            f"weights are damaged, or too large for dtype {self.resolved.dtype}"
        )

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
                if self._executor is not None:
                    return PendingStep(plan.step, self._executor.launch(plan))
                self._rows.start(plan.starts)
                batch = build_inputs(
                    plan.items, self._rows, self.resolved.block_tokens, self._device.torch
                )
                sampled = self._runner.sample(batch, self._rows)
                read = begin_readback(sampled) if sampled is not None else list
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise DeviceOutOfMemory(
                    "The model's device ran out of memory; try again, with fewer or shorter "
                    "requests at a time."
                ) from error
            raise InternalError(f"step {plan.step} failed: {error}") from error
        return PendingStep(plan.step, read)

    def close(self) -> None:
        """Give the memory back; the engine cannot be used any more."""
        del self._runner, self._rows, self._executor
        release_cached(self._device)


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What an engine is assembled from, beside its parameters."""

    architecture: str
    hparams: HParams
    options: EngineOptions
    device: Device
    dtype: torch.dtype
    sizing: Sizing


def _assemble(blueprint: Blueprint, parameters: Parameters) -> tuple[Runner, EngineInfo, OpSet]:
    """Fill what was sized."""
    device, dtype, sizing = blueprint.device, blueprint.dtype, blueprint.sizing
    family = family_of(blueprint.architecture)
    spec = family.kv_spec(blueprint.hparams, blueprint.options.block_tokens, dtype.itemsize)
    try:
        with torch.inference_mode():
            ops = select_ops(_op_request(blueprint))
            _log_choices(ops)
            model = family.build(blueprint.hparams, parameters, ops, sizing.max_ctx)
            if ops.is_on_device:
                sizing = _fitted(blueprint, spec, model, ops)
            kv_tensors = HeadMajorKVTensors if ops.is_on_device else KVTensors
            kv = kv_tensors(spec, sizing.num_blocks + 1, dtype, device.torch)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise PlacementError(
                f"{device.name} ran out of memory while loading; {sizing.summary} needed, "
                f"{format_bytes(free_bytes(device))} free now"
            ) from error
        raise
    release_cached(device)
    return Runner(model, kv, ops.attention), _info(blueprint, sizing, model, ops), ops


def _fitted(blueprint: Blueprint, spec: KVSpec, model: Model, ops: OpSet) -> Sizing:
    """The sizing with the pool that fits a GPU beside the model's steps."""
    # Triton is needed only where it was chosen.
    from luce.engine.device_sizing import fit_pool, measure_steps

    device, sizing, options = blueprint.device, blueprint.sizing, blueprint.options
    release_cached(device)
    null_block = HeadMajorKVTensors(spec, 1, blueprint.dtype, device.torch)
    info = _info(blueprint, sizing, model, ops)
    probe = Runner(model, null_block, ops.attention)
    steps, free = measure_steps(probe, info, device, options.chunk)
    return fit_pool(sizing, spec, options, steps, free)


def _info(blueprint: Blueprint, sizing: Sizing, model: Model, ops: OpSet) -> EngineInfo:
    options = blueprint.options
    return EngineInfo(
        architecture=blueprint.architecture,
        device=blueprint.device.name,
        dtype=dtype_name(blueprint.dtype),
        max_ctx=sizing.max_ctx,
        kv_pool_tokens=sizing.num_blocks * options.block_tokens,
        num_blocks=sizing.num_blocks + 1,
        block_tokens=options.block_tokens,
        max_rows=options.max_concurrency,
        weights_bytes=model.nbytes,
        kv_bytes=sizing.kv_bytes,
        vocab_size=model.vocab_size,
        kernels=tuple(f"{choice.op}={choice.chosen}" for choice in ops.choices),
    )


def _log_choices(ops: OpSet) -> None:
    for choice in ops.choices:
        refused = "; ".join(f"{name}: {reason}" for name, reason in choice.refused)
        fields = {"op": choice.op, "chosen": choice.chosen, "refused": refused}
        _log.debug("implementation chosen", extra=fields)


def _op_request(blueprint: Blueprint) -> OpRequest:
    hparams = blueprint.hparams
    return OpRequest(
        device=blueprint.device.torch,
        dtype=blueprint.dtype,
        heads=HeadShape(hparams.num_heads, hparams.num_kv_heads, hparams.head_dim),
        interleaved_rope=hparams.rope_layout == "interleaved",
        lanes=blueprint.options.max_concurrency,
        max_ctx=blueprint.sizing.max_ctx,
    )


def _executor(runner: Runner, resolved: EngineInfo, device: Device) -> DeviceExecutor:
    # Triton is needed only where it was chosen.
    from luce.engine.device_executor import DeviceExecutor

    return DeviceExecutor(runner, resolved, device.torch)
