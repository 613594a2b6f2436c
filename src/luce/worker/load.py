"""From a LoadSpec to an engine and its scheduler. The only file here that loads torch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from luce.engine.options import EngineInfo, EngineOptions
from luce.kv.manager import KVManager
from luce.kv.spec import blocks_for
from luce.protocol import messages as wire
from luce.protocol.paths import path_from_wire
from luce.scheduler.limits import SchedulerLimits
from luce.scheduler.scheduler import Scheduler
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
    )
    engine = Engine.load(options, progress)
    try:
        engine.warm_up()
    except BaseException:
        engine.close()
        raise
    info = engine.resolved
    return LoadedModel(
        engine=engine,
        scheduler=_scheduler(spec, info),
        depth=0 if info.device.startswith("cpu") else 1,
        ready=_ready(info),
    )


def _scheduler(spec: wire.LoadSpec, info: EngineInfo) -> Scheduler:
    # A prefix hit of a model with recurrent states needs a saved one at its end.
    prefix_cache = spec.prefix_cache and info.state is None
    kv = KVManager(
        info.num_blocks, info.block_tokens, spec.path.encode(), prefix_cache=prefix_cache
    )
    limits = SchedulerLimits(
        max_rows=info.max_rows,
        max_ctx=info.max_ctx,
        chunk=spec.chunk,
        quantum=blocks_for(QUANTUM_TOKENS, info.block_tokens) * info.block_tokens,
    )
    return Scheduler(kv, limits, time.monotonic_ns, lambda: secrets.randbits(_SEED_BITS))


def _ready(info: EngineInfo) -> wire.Ready:
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
    )
