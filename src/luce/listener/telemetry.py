"""What the server counts: told by every finished request, read by status and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from luce import __version__
from luce.errors import Overloaded, ShuttingDown
from luce.listener.context import RequestContext
from luce.listener.expert_load import expert_loads
from luce.listener.residency_readings import read_placement
from luce.listener.served import ServedModel, ServedModels
from luce.observability import metrics as m
from luce.observability.history import FinishedRequest, PerfHistory
from luce.observability.memory import resident_bytes
from luce.observability.timing import RequestTimings
from luce.protocol.messages import WorkerStats
from luce.routing.policy import ByName, ModelView
from luce.routing.router import Router

_MS_PER_S = 1000


class Telemetry:
    """Counters of one server; event loop only.

    Attributes:
        metrics: what `/metrics` shows.
        history: the last generations that ended well.
    """

    def __init__(self, models: ServedModels, router: Router) -> None:
        self._models = models
        self._router = router
        self._names = [model.name for model in models]
        self.metrics = m.Metrics(self._read, self._names)
        self.history = PerfHistory()

    def finished(self, context: RequestContext) -> None:
        """A request has ended, well or not; its context says how."""
        if not context.is_generation:
            return
        outcome, timings = context.outcome, context.timings
        model: str = outcome.get("model", "")
        if model:
            self._count_route(model, outcome.get("passed_over", {}))
            self._observe_start(model, timings)
        if "error" in outcome or "finish" not in outcome:
            self._count_failure(model, outcome)
        else:
            self._observe_success(model, outcome, timings)

    def _count_route(self, model: str, passed_over: dict[str, str]) -> None:
        first = self._names[0]
        other = "named" if self._router.policy.name == ByName.name else "unready"
        reason = "preferred" if first == model else passed_over.get(first, other)
        self.metrics.count(m.ROUTE_DECISIONS, first, model, reason.replace(" ", "_"))

    def _observe_start(self, model: str, timings: RequestTimings) -> None:
        self._observe_ms(m.REQUEST_QUEUE_TIME, timings.queue_ms, model)
        self._observe_ms(m.TIME_TO_FIRST_TOKEN, timings.ttft_ms, model)
        self._observe_ms(m.REQUEST_PREFILL_TIME, timings.prefill_ms, model)

    def _observe_success(
        self, model: str, outcome: dict[str, Any], timings: RequestTimings
    ) -> None:
        num_prompt, num_cached, num_output = (
            int(outcome[name]) for name in ("prompt_tokens", "cached_tokens", "tokens")
        )
        self.metrics.count(m.REQUEST_SUCCESS, model, outcome["finish"])
        self._observe_ms(m.E2E_REQUEST_LATENCY, timings.total_ms, model)
        self._observe_ms(m.REQUEST_DECODE_TIME, timings.decode_ms, model)
        self.metrics.observe(m.REQUEST_PROMPT_TOKENS, num_prompt, model)
        self.metrics.observe(m.REQUEST_GENERATION_TOKENS, num_output, model)
        decode_rate = timings.tokens_per_s(num_output)
        if decode_rate is not None:
            self.metrics.observe(m.INTER_TOKEN_LATENCY, 1 / decode_rate, model)
        self.history.add(
            FinishedRequest(
                model=model,
                prompt_tokens=num_prompt,
                cached=num_cached,
                completion_tokens=num_output,
                queue_ms=timings.queue_ms,
                ttft_ms=timings.ttft_ms,
                prefill_tok_s=_rate(num_prompt - num_cached, timings.prefill_ms),
                decode_tok_s=decode_rate,
            )
        )

    def _count_failure(self, model: str, outcome: dict[str, Any]) -> None:
        code: str = outcome.get("error", "internal_error")
        self.metrics.count(m.REQUEST_FAILURE, model, code)
        if not model and code == Overloaded.code:
            self.metrics.count(m.QUEUE_REJECTED, outcome.get("rejected", "full"))
        elif not model and code == ShuttingDown.code:
            self.metrics.count(m.QUEUE_REJECTED, code)

    def _observe_ms(self, spec: m.MetricSpec, value_ms: float | None, model: str) -> None:
        if value_ms is not None:
            self.metrics.observe(spec, value_ms / _MS_PER_S, model)

    # --- read at a scrape ----------------------------------------------------------------

    def _read(self) -> Iterator[m.Reading]:
        yield m.Reading(m.BUILD_INFO, 1, (__version__,))
        yield m.Reading(m.REQUESTS_WAITING, self._router.num_waiting)
        yield m.Reading(m.QUEUE_LIMIT, self._router.queue_limit)
        resident = resident_bytes()
        if resident is not None:
            yield m.Reading(m.PROCESS_RESIDENT_BYTES, resident)
        if self._models.coordinator is not None:
            yield from read_placement(self._models.coordinator, self._router)
        for view in self._router.views():
            model = self._models[view.name]
            yield from _read_routing(model, view)
            yield from _read_worker(model)


def _read_routing(model: ServedModel, view: ModelView) -> Iterator[m.Reading]:
    name, handle = (model.name,), model.handle
    yield m.Reading(m.RESIDENT, 1, (model.name, model.device, view.state))
    yield m.Reading(m.MODEL_SLOTS, view.capacity, name)
    yield m.Reading(m.MODEL_SLOTS_RESERVED, view.in_flight, name)
    yield m.Reading(m.REQUESTS_RUNNING, handle.in_flight, name)
    yield m.Reading(m.REQUESTS_DECODING, handle.num_decoding, name)
    yield m.Reading(m.WORKER_RESTARTS, model.num_restarts, name)


def _read_worker(model: ServedModel) -> Iterator[m.Reading]:
    """What the worker has said of itself; its counters start anew with its process."""
    ready, stats = model.handle.ready, model.handle.stats
    if ready is None:
        return
    name = (model.name,)
    yield m.Reading(m.KV_CACHE_TOKENS, ready.limits.kv_pool_tokens, name)
    yield m.Reading(m.PREFIX_CACHE_QUERIES, stats.prefix_query_tokens, name)
    yield m.Reading(m.PREFIX_CACHE_HITS, stats.prefix_hit_tokens, name)
    yield m.Reading(m.STATE_CHECKPOINTS_RESTORED, stats.restored_checkpoints, name)
    yield m.Reading(m.PROMPT_TOKENS, stats.prompt_tokens, name)
    yield m.Reading(m.GENERATION_TOKENS, stats.generated_tokens, name)
    yield m.Reading(m.PREEMPTIONS, stats.preemptions, name)
    yield m.Reading(m.ENGINE_STEPS, stats.steps, name)
    yield from _read_experts(model.name, stats)
    if not model.is_up:
        return
    yield m.Reading(m.REQUESTS_SUSPENDED, stats.preempted, name)
    yield m.Reading(m.DEVICE_BYTES, ready.weights_bytes, (model.name, ready.device, "weights"))
    yield m.Reading(m.DEVICE_BYTES, ready.kv_bytes, (model.name, ready.device, "kv"))
    yield m.Reading(m.KV_CACHE_USAGE_RATIO, _kv_usage(stats), name)
    yield m.Reading(m.STATE_CHECKPOINTS, stats.used_checkpoints, name)
    if stats.rss_bytes:
        yield m.Reading(m.WORKER_RESIDENT_BYTES, stats.rss_bytes, name)


def _read_experts(model: str, stats: WorkerStats) -> Iterator[m.Reading]:
    """One series a layer, not one an expert: those are in the status."""
    loads = expert_loads(stats)
    if loads:
        yield m.Reading(m.EXPERT_TOKENS, sum(load.total for load in loads), (model,))
    for layer, load in enumerate(loads):
        yield m.Reading(m.EXPERTS_UNUSED, load.num_unused, (model, str(layer)))
        if load.imbalance is not None:
            yield m.Reading(m.EXPERT_IMBALANCE, load.imbalance, (model, str(layer)))


def _kv_usage(stats: WorkerStats) -> float:
    """Share of blocks that are held; a worker that has not said anything yet has run nothing."""
    if not stats.total_blocks:
        return 0.0
    return 1 - (stats.free_blocks + stats.cached_blocks) / stats.total_blocks


def _rate(num_tokens: int, elapsed_ms: float | None) -> float | None:
    if not elapsed_ms or num_tokens <= 0:
        return None
    return num_tokens * _MS_PER_S / elapsed_ms
