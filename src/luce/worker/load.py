"""From a LoadSpec to an engine and its scheduler. The only file here that loads torch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from luce.engine.options import EngineInfo, EngineOptions
from luce.kv.host_tier import BlockStore
from luce.kv.manager import KVManager
from luce.kv.spec import blocks_for, checkpoint_slots
from luce.loaders.file_identity import require_unchanged
from luce.protocol import messages as wire
from luce.protocol.paths import path_from_wire
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.scheduler import Scheduler
from luce.sizing.host_memory import available_bytes
from luce.sizing.snapshots import SnapshotSizes, automatic_bytes
from luce.worker.ports import Post, StepEngine

PROGRESS_INTERVAL_NS = 100_000_000

QUANTUM_TOKENS = 128
"""Prompt tokens dealt to a sequence before the next one's turn, rounded up to whole blocks."""
_SEED_BITS = 64


class LoadStopped(Exception):
    """The listener said Shutdown while the model loaded."""


class LoadWatch:
    """What loading calls as it advances: tells the listener, and hears it."""

    def __init__(self, post: Post, clock_ns: Callable[[], int]) -> None:
        self._post = post
        self._clock_ns = clock_ns
        self._next_ns = 0

    def __call__(self, stage: str, done_bytes: int, total_bytes: int) -> None:
        """Report, at most ten times a second.

        Raises:
            LoadStopped: there is no need to go on.
        """
        now_ns = self._clock_ns()
        if now_ns < self._next_ns and done_bytes < total_bytes:
            return
        self._next_ns = now_ns + PROGRESS_INTERVAL_NS
        self._post.send(wire.LoadProgress(stage, done_bytes, total_bytes))
        for message in self._post.receive(wait=False):
            if isinstance(message, wire.Shutdown):
                raise LoadStopped
            if isinstance(message, wire.Control):
                self._post.send(wire.ControlDone(message.op_id, "The model is loading."))


class LoadedEngine(StepEngine, Protocol):
    """An engine that also holds memory."""

    def close(self) -> None:
        """Give the device's memory back."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can serve.

    Attributes:
        engine: executes plans.
        scheduler: makes them, over the engine's blocks.
        depth: steps that may be under way behind the running one.
        ready: what to tell the listener; without `load_ms`, which is not known here.
    """

    engine: LoadedEngine
    scheduler: Scheduler
    depth: int
    ready: wire.Ready


def load_model(spec: wire.LoadSpec, progress: Callable[[str, int, int], None]) -> LoadedModel:
    """Load the weights, make the KV cache and try the device once.

    Raises:
        StartupError: the file or the device does not allow it.
        LoadStopped: from `progress`.
    """
    from luce.engine.engine import Engine

    require_unchanged(Path(path_from_wire(spec.path)), spec.files)
    options = EngineOptions(
        path=Path(path_from_wire(spec.path)),
        device=spec.device,
        dtype=spec.dtype,
        threads=spec.threads,
        max_ctx=spec.max_ctx,
        max_concurrency=spec.max_concurrency,
        kv_pool_tokens=spec.kv_pool_tokens,
        chunk=spec.chunk,
        block_tokens=spec.block_tokens,
        cache_type_k=spec.cache_type_k,
        cache_type_v=spec.cache_type_v,
        cpu_exact=spec.cpu_exact,
        num_checkpoints=checkpoint_slots(spec.max_concurrency, spec.prefix_cache),
        takes_turns=spec.takes_turns,
    )
    engine = Engine.load(options, progress)
    try:
        engine.warm_up()
    except BaseException:
        engine.close()
        raise
    info = engine.resolved
    store = engine.host_blocks(snapshot_bytes(spec, info, available_bytes()))
    return LoadedModel(
        engine=engine,
        scheduler=_scheduler(spec, info, store),
        depth=0 if info.device.startswith("cpu") else 1,
        ready=_ready(info, engine.peak_bytes),
    )


def snapshot_bytes(spec: wire.LoadSpec, info: EngineInfo, available: int) -> int:
    """Host memory for prefixes: as it was said or planned, else as much as suits the machine."""
    if spec.prefix_snapshot_bytes is not None:
        return spec.prefix_snapshot_bytes
    sizes = SnapshotSizes(
        max_ctx=info.max_ctx,
        block_bytes=info.kv_bytes // info.num_blocks,
        block_tokens=info.block_tokens,
        max_rows=info.max_rows,
        state=info.state,
    )
    return automatic_bytes(sizes, available, spec.num_models)


def _scheduler(spec: wire.LoadSpec, info: EngineInfo, store: BlockStore) -> Scheduler:
    kv = KVManager(
        info.num_blocks,
        info.block_tokens,
        spec.path.encode(),
        prefix_cache=spec.prefix_cache,
        num_checkpoints=None if info.state is None else info.num_checkpoints,
        store=store if store.num_blocks else None,
    )
    limits = SchedulerLimits(
        max_rows=info.max_rows,
        max_ctx=info.max_ctx,
        chunk=spec.chunk,
        quantum=blocks_for(QUANTUM_TOKENS, info.block_tokens) * info.block_tokens,
    )
    return Scheduler(kv, limits, time.monotonic_ns, lambda: secrets.randbits(_SEED_BITS))


def _ready(info: EngineInfo, peak_bytes: int) -> wire.Ready:
    return wire.Ready(
        limits=wire.Limits(
            max_ctx=info.max_ctx,
            max_concurrency=info.max_rows,
            kv_pool_tokens=info.kv_pool_tokens,
            block_tokens=info.block_tokens,
        ),
        architecture=info.architecture,
        device=info.device,
        dtype=info.dtype,
        weights_bytes=info.weights_bytes,
        kv_bytes=info.kv_bytes,
        vocab_size=info.vocab_size,
        load_ms=0,
        num_layers=info.num_layers,
        hidden_size=info.hidden_size,
        layers=_layers(info),
        peak_bytes=peak_bytes,
    )


def _layers(info: EngineInfo) -> wire.LayerMemory | None:
    if info.kv is None:
        return None
    return wire.LayerMemory(
        pattern=info.layer_pattern,
        kv_bytes_per_token=info.kv.bytes_per_token,
        state_bytes_per_sequence=0 if info.state is None else info.state.bytes_per_slot,
        state_bytes=info.state_bytes,
        num_checkpoints=info.num_checkpoints,
    )
