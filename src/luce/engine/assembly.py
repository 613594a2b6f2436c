"""Makes an engine's parts: a model of a blueprint's weights, and what it serves with.

The two are apart because an evicted model may keep its weights and gives the rest back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from luce.engine.cache_memory import Zeros, cache_memory, fresh_zeros
from luce.engine.device import (
    Device,
    dtype_name,
    free_bytes,
    is_out_of_memory,
    release_cached,
)
from luce.engine.kv_tensors import kv_tensors
from luce.engine.kv_types import typed_spec
from luce.engine.memory_driver import DriverError, MemoryDriver
from luce.engine.models.base import Model, Parameters
from luce.engine.models.registry import family_of
from luce.engine.ops.attention import HeadShape
from luce.engine.ops.candidates import OpRequest
from luce.engine.ops.cpu.native import NativeOps
from luce.engine.ops.cpu.native_choice import NativeChooser
from luce.engine.ops.select import OpSet, select_ops
from luce.engine.options import EngineInfo, EngineOptions
from luce.engine.recorded import RecordedModel
from luce.engine.rows import RowState
from luce.engine.runner import Runner
from luce.engine.sampling.draw import choose
from luce.engine.sampling.sampler import Sampler
from luce.engine.state_tensors import StateTensors, num_slots
from luce.errors import PlacementError, UsageError
from luce.kv.spec import KVSpec, StateSpec
from luce.loaders.file_identity import FileIdentity
from luce.loaders.hparams import HParams
from luce.loaders.linear_attention import layer_pattern
from luce.sizing.model_sizes import Sizing
from luce.units import format_bytes

if TYPE_CHECKING:
    from luce.engine.device_executor import DeviceExecutor

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What an engine is assembled from, beside its parameters.

    Attributes:
        files: which files the parameters come from; None if from none.
    """

    architecture: str
    hparams: HParams
    options: EngineOptions
    device: Device
    dtype: torch.dtype
    sizing: Sizing
    files: FileIdentity | None = None

    @property
    def kv_spec(self) -> KVSpec:
        """What the model keeps per token."""
        return kv_spec(self.architecture, self.hparams, self.options, self.dtype)

    @property
    def state_spec(self) -> StateSpec | None:
        """What it keeps per sequence beside that."""
        return family_of(self.architecture).state_spec(self.hparams, self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model on its device, and what it runs on."""

    model: Model
    ops: OpSet


def kv_spec(
    architecture: str, hparams: HParams, options: EngineOptions, dtype: torch.dtype
) -> KVSpec:
    """What a model keeps per token, in the types that were asked for."""
    spec = family_of(architecture).kv_spec(hparams, options.block_tokens, dtype.itemsize)
    return typed_spec(spec, options, dtype)


def check_dtype(hparams: HParams, dtype: torch.dtype, device: Device) -> None:
    """The products of a recurrence over a chunk leave float16's range on a GPU (seen on one).

    Raises:
        UsageError: it would be computed in that type.
    """
    if hparams.linear_attention is not None and dtype == torch.float16 and not device.is_cpu:
        raise UsageError(
            f"--dtype float16: {hparams.architecture} computes its recurrent layers in bfloat16 "
            "or float32 on a GPU; leave the option out or choose one of them"
        )


def build_model(blueprint: Blueprint, parameters: Parameters) -> BuiltModel:
    """Choose the operations and fill the weights.

    Raises:
        ModelFileError: a parameter is missing or damaged.
        PlacementError: the device's memory does not hold them.
    """
    family = family_of(blueprint.architecture)
    with room_for(blueprint), torch.inference_mode():
        ops = select_ops(_op_request(blueprint))
        _log_choices(ops)
        model = family.build(blueprint.hparams, parameters, ops, blueprint.sizing.max_ctx)
    return BuiltModel(model, ops)


def fitted(blueprint: Blueprint, built: BuiltModel) -> Blueprint:
    """With the pool that fits beside the model's steps; on a CPU it is known before.

    Raises:
        PlacementError: none does.
    """
    if not built.ops.is_on_device:
        return blueprint
    with room_for(blueprint), torch.inference_mode():
        return replace(blueprint, sizing=_fitted(blueprint, built))


def make_runner(
    blueprint: Blueprint, built: BuiltModel, driver: MemoryDriver | None = None
) -> Runner:
    """The model with the cache and the states of a blueprint that was fitted.

    Args:
        blueprint: the sizes.
        built: the model.
        driver: gives them addresses that outlive their memory; None: PyTorch gives them both.

    Raises:
        PlacementError: the device's memory does not hold them.
    """
    by_head, device, dtype = built.ops.is_on_device, blueprint.device, blueprint.dtype
    spec, blocks = blueprint.kv_spec, blueprint.sizing.num_blocks + 1
    sizes = (spec.bytes_per_block * blocks, *_state_sizes(blueprint))
    with room_for(blueprint), torch.inference_mode():
        memory = cache_memory(driver, sizes, device)
        zeros = fresh_zeros if memory is None else memory.zeros
        kv = kv_tensors(spec, blocks, dtype, device.torch, zeros, by_head=by_head)
        states = _states(blueprint, zeros)
    release_cached(device)
    model = built.model
    native = built.ops.native
    if native is not None and _is_recordable(native, blueprint.hparams):
        # A recording knows the cache's addresses, so it goes with the cache.
        capacity = blueprint.options.chunk + blueprint.options.max_concurrency
        model = RecordedModel(model, native.tape, capacity)
    return Runner(model, kv, built.ops.attention, states, memory)


def _is_recordable(native: NativeOps, hparams: HParams) -> bool:
    """Whether a recording can cover all: plain experts are called as tokens choose them."""
    return native.is_used and (hparams.experts is None or native.has_experts)


def make_rows(built: BuiltModel, resolved: EngineInfo, device: Device) -> RowState:
    """Rows for steps that are laid out on the host."""
    native = built.ops.native
    sampler = Sampler(
        resolved.max_rows,
        resolved.vocab_size,
        resolved.max_ctx,
        device.torch,
        choose if native is None else NativeChooser(native.tape.library),
    )
    return RowState(resolved.max_rows, sampler, device.torch)


def make_executor(runner: Runner, resolved: EngineInfo, device: Device) -> DeviceExecutor:
    """What runs steps on a device."""
    # Triton is needed only where it was chosen.
    from luce.engine.device_executor import DeviceExecutor

    return DeviceExecutor(runner, resolved, device.torch)


def engine_info(blueprint: Blueprint, built: BuiltModel) -> EngineInfo:
    """A fitted blueprint's geometry."""
    options, sizing = blueprint.options, blueprint.sizing
    state = blueprint.state_spec
    return EngineInfo(
        architecture=blueprint.architecture,
        device=blueprint.device.name,
        dtype=dtype_name(blueprint.dtype),
        max_ctx=sizing.max_ctx,
        kv_pool_tokens=sizing.num_blocks * options.block_tokens,
        num_blocks=sizing.num_blocks + 1,
        block_tokens=options.block_tokens,
        max_rows=options.max_concurrency,
        weights_bytes=built.model.nbytes,
        kv_bytes=sizing.kv_bytes,
        vocab_size=built.model.vocab_size,
        layer_pattern=layer_pattern(blueprint.hparams),
        kv=blueprint.kv_spec,
        state=state,
        num_checkpoints=0 if state is None else options.num_checkpoints,
        state_bytes=sizing.state_bytes,
        num_layers=blueprint.hparams.num_layers,
        hidden_size=blueprint.hparams.hidden_size,
        kernels=tuple(f"{choice.op}={choice.chosen}" for choice in built.ops.choices),
    )


@contextmanager
def room_for(blueprint: Blueprint) -> Iterator[None]:
    """Says what was needed when memory runs out inside.

    Raises:
        PlacementError: in place of PyTorch's errors.
    """
    try:
        yield
    except DriverError as error:
        raise PlacementError(f"{blueprint.device.name} gave no memory: {error}") from error
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        device = blueprint.device
        raise PlacementError(
            f"{device.name} ran out of memory while loading; {blueprint.sizing.summary} needed, "
            f"{format_bytes(free_bytes(device))} free now"
        ) from error


def _states(blueprint: Blueprint, zeros: Zeros = fresh_zeros) -> StateTensors | None:
    """Room for the recurrent states, where the model has such."""
    options, dtype = blueprint.options, blueprint.dtype
    spec = blueprint.state_spec
    if spec is None:
        return None
    rows, checkpoints = options.max_concurrency, options.num_checkpoints
    return StateTensors(spec, rows, checkpoints, dtype, blueprint.device.torch, zeros)


def _state_sizes(blueprint: Blueprint) -> tuple[int, ...]:
    """Bytes of each tensor of `_states`."""
    spec, options = blueprint.state_spec, blueprint.options
    if spec is None:
        return ()
    lines = num_slots(options.max_concurrency, options.num_checkpoints) * spec.num_layers
    return (
        lines * spec.conv_elements * spec.conv_element_bytes,
        lines * spec.recurrent_elements * torch.float32.itemsize,
    )


def _fitted(blueprint: Blueprint, built: BuiltModel) -> Sizing:
    # Triton is needed only where it was chosen.
    from luce.engine.device_sizing import fit_pool, measure_steps

    device, options, spec = blueprint.device, blueprint.options, blueprint.kv_spec
    release_cached(device)
    null_block = kv_tensors(spec, 1, blueprint.dtype, device.torch, by_head=True)
    probe = Runner(built.model, null_block, built.ops.attention, _states(blueprint))
    info = engine_info(blueprint, built)
    steps, free = measure_steps(probe, info, device, options)
    return fit_pool(blueprint.sizing, spec, options, steps, free)


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
        has_typed_cache=blueprint.kv_spec.key_type is not None,
        block_tokens=blueprint.options.block_tokens,
        exact=blueprint.options.cpu_exact,
    )
