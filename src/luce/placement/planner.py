"""Makes memory plans: from a checkpoint's headers and the options a worker will be told.

The bytes are those of `luce.sizing`, by which the engine allocates. Steps on a GPU are measured
by the worker; here they are bounded from above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from luce.kv.spec import checkpoint_slots
from luce.loaders.checkpoint import Checkpoint
from luce.loaders.opening import open_checkpoint
from luce.placement.devices import HOST_POOL, Device
from luce.placement.identity import plan_identity
from luce.placement.memory_plan import DevicePlan, FrozenSizes, MemoryPlan
from luce.protocol.messages import LoadSpec
from luce.sizing.cpu_kernels import keeps_tiles
from luce.sizing.element_types import ELEMENT_BYTES, KV_TYPE_OF, resolve_dtype_name
from luce.sizing.geometry import kv_spec, state_spec, typed_spec
from luce.sizing.model_sizes import DEFAULT_MAX_CTX, ModelGeometry, Room, Sizing, size_model
from luce.sizing.snapshots import SnapshotSizes, automatic_bytes
from luce.sizing.steps import device_step_bytes, kept_step_bytes
from luce.units import format_bytes

_MIB = 1 << 20
CONTEXT_BYTES = 600 * _MIB
"""A compute context of a worker on a GPU, until measured. Source: spec swap-and-admission B2.4."""
PROCESS_BYTES = 256 * _MIB
"""A worker process without a model. Measured: 224 MiB once PyTorch is imported."""
DEVICE_PROCESS_BYTES = 1536 * _MIB
"""The same beside a GPU, with the runtime's host side and the staging memory of a load."""
LEAST_FITTED_CTX = 512
"""A context nobody asked for is shortened to fit, but not below this: serving would be no use."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be planned.

    Attributes:
        spec: what the worker would be told; its None are resolved by the plan.
        device: where the model goes.
        free_bytes: what it could take there if no other model of ours were on the device, less
            the margin: sizes whatever nobody gave a size. None = all the device has.
        host_free_bytes: of the machine's memory, likewise; None = nobody knows, and what prefixes
            may take there by themselves is not planned.
        parked_bytes: host memory there is for weights of models that are swapped out.
        beside_bytes: of the device's memory, what models that take turns with this one keep there.
    """

    spec: LoadSpec
    device: Device
    free_bytes: int | None = None
    host_free_bytes: int | None = None
    parked_bytes: int = 0
    beside_bytes: int = 0

    @property
    def is_on_cpu(self) -> bool:
        """Whether the model is computed on the host."""
        return self.device.backend == "cpu"

    @property
    def ceiling_bytes(self) -> int:
        """What one model can take on the device when nothing else is there."""
        return self.device.total_bytes - self.device.margin_bytes


def plan_model(
    request: PlanRequest, opened: Callable[[Path], Checkpoint] = open_checkpoint
) -> MemoryPlan:
    """Plan a model on disk; reads headers only.

    Raises:
        ModelFileError: the files cannot be read.
        UsageError: an option does not go together with the model.
    """
    return plan_checkpoint(opened(Path(request.spec.path)), request)


def plan_checkpoint(checkpoint: Checkpoint, request: PlanRequest) -> MemoryPlan:
    """Plan an opened model.

    Raises:
        ModelFileError: a file went away meanwhile.
        UsageError: an option does not go together with the model.
    """
    identity = plan_identity(checkpoint, request.spec, request.device)
    device = request.device
    if not device.total_bytes:
        return MemoryPlan(
            identity=identity,
            result="unknown",
            problem=f"nobody says how much memory {device.id} has, or whether it is there",
        )
    geometry = _geometry(checkpoint, request.spec, on_cpu=request.is_on_cpu)
    sizing = _sizing(geometry, request)
    parts = _device_plan(sizing, request)
    devices = {device.uuid: parts}
    snapshots = _snapshot_bytes(sizing, geometry, request)
    host = _host_plan(sizing, snapshots or 0, request)
    if parts.total_bytes > request.ceiling_bytes:
        return MemoryPlan(
            identity=identity,
            devices=devices,
            host=host,
            result="cannot_fit",
            problem=_too_large(parts, request),
        )
    return MemoryPlan(
        identity=identity,
        devices=devices,
        host=host,
        result="ok",
        sizes=FrozenSizes(
            max_ctx=sizing.max_ctx,
            kv_pool_tokens=sizing.num_blocks * request.spec.block_tokens,
            prefix_snapshot_bytes=snapshots,
        ),
        kept_bytes=_kept(geometry, request),
        warnings=tuple(_warnings(sizing, checkpoint.hparams.context_length, request)),
    )


def frozen_spec(spec: LoadSpec, plan: MemoryPlan) -> LoadSpec:
    """What the worker is told, with the plan's sizes in place of what it would resolve itself."""
    if plan.sizes is None:
        return spec
    return msgspec.structs.replace(
        spec,
        max_ctx=plan.sizes.max_ctx,
        kv_pool_tokens=plan.sizes.kv_pool_tokens,
        prefix_snapshot_bytes=plan.sizes.prefix_snapshot_bytes,
    )


def _geometry(checkpoint: Checkpoint, spec: LoadSpec, *, on_cpu: bool) -> ModelGeometry:
    dtype = resolve_dtype_name(spec.dtype, on_cpu=on_cpu)
    element_bytes = ELEMENT_BYTES[dtype]
    plain = kv_spec(checkpoint.hparams, spec.block_tokens, element_bytes)
    return ModelGeometry(
        checkpoint=checkpoint,
        dtype=dtype,
        kv=typed_spec(plain, spec, KV_TYPE_OF[dtype]),
        state=state_spec(checkpoint.hparams, element_bytes),
        num_checkpoints=checkpoint_slots(spec.max_concurrency, spec.prefix_cache),
        is_tiled=keeps_tiles(dtype, on_cpu=on_cpu, is_exact=spec.cpu_exact),
    )


def _sizing(geometry: ModelGeometry, request: PlanRequest) -> Sizing:
    """The sizes; a context that nobody asked for is shortened as far as that makes them fit."""
    room = _room(request)
    sizing = _sized(geometry, request, request.spec)
    if request.spec.max_ctx is not None or request.spec.kv_pool_tokens is not None:
        return sizing
    least, most = LEAST_FITTED_CTX, sizing.max_ctx
    if most <= least or _needed(sizing, request) <= room:
        return sizing
    best = sizing
    while least <= most:
        tried = (least + most) // 2
        spec = msgspec.structs.replace(request.spec, max_ctx=tried)
        shorter = _sized(geometry, request, spec)
        if _needed(shorter, request) <= room:
            best, least = shorter, tried + 1
        else:
            most = tried - 1
    return best


def _sized(geometry: ModelGeometry, request: PlanRequest, spec: LoadSpec) -> Sizing:
    """Sizes under the room there is beside what `luce.sizing` does not know of."""
    room = Room(request.device.id, request.is_on_cpu, _room(request) - _context(request))
    sizing = size_model(spec, geometry, room)
    if request.is_on_cpu:
        return sizing
    # Steps take more on a GPU than the scratch memory that the pool was fitted beside.
    steps = _step_bytes(sizing, spec)
    room = replace(room, free_bytes=room.free_bytes - steps + sizing.scratch_bytes)
    return size_model(spec, geometry, room)


def _step_bytes(sizing: Sizing, spec: LoadSpec) -> int:
    """Of a GPU. What takes turns on it captures no prompts."""
    chunk = 0 if spec.takes_turns else spec.chunk
    return device_step_bytes(sizing.scratch_bytes, spec.max_concurrency, chunk)


def _room(request: PlanRequest) -> int:
    """What the model may take."""
    free = request.ceiling_bytes if request.free_bytes is None else request.free_bytes
    return max(0, min(free, request.ceiling_bytes) - request.beside_bytes)


def _needed(sizing: Sizing, request: PlanRequest) -> int:
    return _device_plan(sizing, request).total_bytes


def _device_plan(sizing: Sizing, request: PlanRequest) -> DevicePlan:
    compute = sizing.scratch_bytes
    if not request.is_on_cpu:
        compute = _step_bytes(sizing, request.spec)
    return DevicePlan(
        weights_bytes=sizing.weights_bytes,
        kv_bytes=sizing.kv_bytes,
        state_bytes=sizing.state_bytes,
        compute_bytes=compute,
        overhead_bytes=_context(request),
    )


def _host_plan(sizing: Sizing, snapshot_bytes: int, request: PlanRequest) -> DevicePlan:
    """A process stands on the host, wherever its model is, and what is kept there beside it."""
    if request.is_on_cpu:
        # A CPU's weights stay where they are when it is swapped out.
        return DevicePlan(overhead_bytes=PROCESS_BYTES, kv_bytes=snapshot_bytes)
    is_parked = sizing.weights_bytes <= request.parked_bytes
    return DevicePlan(
        weights_bytes=sizing.weights_bytes if is_parked else 0,
        kv_bytes=snapshot_bytes,
        overhead_bytes=DEVICE_PROCESS_BYTES,
    )


def _snapshot_bytes(sizing: Sizing, geometry: ModelGeometry, request: PlanRequest) -> int | None:
    """Host memory for prefixes; by itself never what the model itself needs. None: unknown."""
    spec = request.spec
    if not spec.prefix_cache:
        return 0
    if spec.prefix_snapshot_bytes is not None or request.host_free_bytes is None:
        return spec.prefix_snapshot_bytes
    sizes = SnapshotSizes(
        max_ctx=sizing.max_ctx,
        block_bytes=geometry.kv.bytes_per_block,
        block_tokens=spec.block_tokens,
        max_rows=spec.max_concurrency,
        state=geometry.state if geometry.num_checkpoints else None,
    )
    wanted = automatic_bytes(sizes, request.host_free_bytes, spec.num_models)
    if request.device.pool != HOST_POOL:
        return wanted
    left = _room(request) - _needed(sizing, request) - PROCESS_BYTES
    return max(0, min(wanted, left))


def _context(request: PlanRequest) -> int:
    """Of a process on the device."""
    return 0 if request.is_on_cpu else CONTEXT_BYTES


def _kept(geometry: ModelGeometry, request: PlanRequest) -> int:
    """On a GPU, of a model that is evicted."""
    if request.is_on_cpu:
        return 0
    hparams, rows = geometry.checkpoint.hparams, request.spec.max_concurrency
    return CONTEXT_BYTES + kept_step_bytes(hparams, rows, geometry.element_bytes)


def _too_large(parts: DevicePlan, request: PlanRequest) -> str:
    device = request.device
    pieces = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.components() if size)
    return (
        f"{request.spec.name} needs {format_bytes(parts.total_bytes)} on {device.id} ({pieces}), "
        f"which has {format_bytes(max(0, request.ceiling_bytes))} for models; lower --max-ctx, "
        "--max-concurrency or --kv-pool-tokens"
    )


def _warnings(sizing: Sizing, context_length: int, request: PlanRequest) -> Iterator[str]:
    wanted = request.spec.max_ctx
    if wanted is not None and sizing.max_ctx < wanted:
        yield f"the KV pool holds {sizing.max_ctx} tokens, less than --max-ctx {wanted}"
    default = min(context_length, DEFAULT_MAX_CTX)
    if wanted is None and sizing.max_ctx < default:
        yield f"the context is {sizing.max_ctx} tokens instead of {default}: no more fits"
