"""Bringing the models up: worker and text of each in parallel, with progress for people."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Sequence

from luce.config.forms import snapshot_bytes
from luce.config.model import ModelConfig
from luce.listener.served import ServedModel, ServedModels
from luce.observability.memory import trim_heap
from luce.protocol.messages import LoadProgress, LoadSpec, Ready
from luce.text.budgets import BudgetOptions
from luce.text.bundle import TextBundle
from luce.text.reasoning import EFFORTS
from luce.text.thinking import ThinkingOptions
from luce.units import format_bytes
from luce.workers.handle import WorkerHandle, WorkerState
from luce.workers.supervisor import Supervisor

log = logging.getLogger(__name__)

_PROGRESS_STEP = 0.25


def load_spec(config: ModelConfig) -> LoadSpec:
    """What the worker of this block is told."""
    return LoadSpec(
        name=config.name,
        path=str(config.path),
        device=config.target_device,
        dtype=config.dtype,
        threads=config.threads,
        max_ctx=config.max_ctx,
        max_concurrency=config.max_concurrency,
        kv_pool_tokens=config.kv_pool_tokens,
        chunk=config.chunk,
        prefix_cache=config.prefix_cache,
        cache_type_k=config.cache_type_k,
        cache_type_v=config.cache_type_v,
        cpu_exact=config.cpu_exact,
        prefix_snapshot_bytes=snapshot_bytes(config.prefix_snapshot_memory),
    )


def load_text(config: ModelConfig) -> TextBundle:
    """Tokenizer and template of this block.

    Raises:
        ModelFileError: see `TextBundle.load`.
        UsageError: budgets that do not go together with the model's card.
    """
    return TextBundle.load(config.path, config.chat_template_file, thinking_options(config))


def thinking_options(config: ModelConfig) -> ThinkingOptions:
    """What this block says about reasoning."""
    said = config.effort_tiers
    return ThinkingOptions(
        config.model_cards,
        BudgetOptions(
            default_max_tokens=config.output_cap,
            think_max_tokens=config.think_max_tokens,
            hard_limit_reply_budget=config.hard_limit_reply_budget,
            effort_tiers={effort: said[effort] for effort in EFFORTS if effort in said},
        ),
    )


async def start_models(models: ServedModels, supervisors: Sequence[Supervisor]) -> None:
    """Load every model; returns when all of them serve.

    Raises:
        StartupError: the first failure; the others may still be loading.
    """
    await asyncio.gather(*(start_model(models, supervisor) for supervisor in supervisors))
    settle_memory()


def watch_model(model: ServedModel) -> None:
    """Say how each of its loads advances and what came of it."""
    _report_progress(model.handle)
    report_ready(model)


def settle_memory() -> None:
    """Everything is loaded that stays as long as the server."""
    # Vocabularies and templates live as long as the server; without this the garbage collector
    # goes through all of them again and again while tokens stream.
    gc.collect()
    gc.freeze()
    # Reading a vocabulary leaves 6 MB of holes behind.
    trim_heap()


async def start_model(models: ServedModels, supervisor: Supervisor) -> None:
    """Load one model with its text; returns when it serves.

    Raises:
        StartupError: it does not load.
    """
    model = models[supervisor.handle.name]
    watch_model(model)
    supervisor.start()
    await asyncio.gather(load_text_of(models, model), supervisor.wait_first_load())
    report_budgets(model)


async def load_text_of(models: ServedModels, model: ServedModel) -> None:
    """Load a model's tokenizer and template.

    Raises:
        StartupError: see `load_text`.
    """
    text = await asyncio.to_thread(load_text, model.config)
    models.set_text(model.name, text)


def report_budgets(model: ServedModel) -> None:
    """Log what requests may think and write; once its context is known, which lowers that."""
    budgets = model.budgets
    if budgets is None:
        return
    log.info(
        "budgets",
        extra={
            "model": model.name,
            "source": budgets.source,
            "default_max_tokens": budgets.default_max_tokens,
            "think_max_tokens": budgets.think_max_tokens,
            "hard_limit_reply_budget": budgets.hard_limit_reply_budget,
            "effort_tiers": budgets.effort_tiers,
        },
    )


def _report_progress(handle: WorkerHandle) -> None:
    """Say how far a load is: at each new stage and each quarter of it."""
    said: tuple[str, int] | None = None

    def report() -> None:
        nonlocal said
        progress = handle.progress
        if progress is None:
            return
        mark = (progress.stage, int(_share(progress) / _PROGRESS_STEP))
        if mark != said:
            said = mark
            say(f"{handle.name}: {_describe(progress)}")

    handle.on_change.append(report)


def report_ready(model: ServedModel) -> None:
    """Log what each process of the model's worker resolved once it serves."""
    handle = model.handle
    said: Ready | None = None

    def report() -> None:
        nonlocal said
        ready = handle.ready
        if ready is None or ready is said or handle.state is not WorkerState.READY:
            return
        said = ready
        log.info("model ready", extra=_resolved(handle.name, ready))
        limits = ready.limits
        if limits.max_seq_tokens < limits.max_ctx:
            log.warning(
                "context is limited by the KV pool",
                extra={
                    "model": handle.name,
                    "max_ctx": limits.max_ctx,
                    "kv_pool_tokens": limits.kv_pool_tokens,
                    "context": limits.max_seq_tokens,
                },
            )

    handle.on_change.append(report)


def _resolved(name: str, ready: Ready) -> dict[str, str | int]:
    limits = ready.limits
    return {
        "model": name,
        "architecture": ready.architecture,
        "device": ready.device,
        "dtype": ready.dtype,
        "context": limits.max_seq_tokens,
        "slots": limits.max_concurrency,
        "kv_pool_tokens": limits.kv_pool_tokens,
        "kv_bytes": ready.kv_bytes,
        "weights_bytes": ready.weights_bytes,
        "load_ms": ready.load_ms,
    }


def say(line: str) -> None:
    """Write a line for people to stdout, at once; nobody may be reading it."""
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError:
        return


def _share(progress: LoadProgress) -> float:
    return progress.done_bytes / progress.total_bytes if progress.total_bytes else 0.0


def _describe(progress: LoadProgress) -> str:
    if not progress.total_bytes:
        return f"loading, {progress.stage}"
    share = f"{100 * _share(progress):.0f} % of {format_bytes(progress.total_bytes)}"
    return f"loading, {progress.stage} {share}"
