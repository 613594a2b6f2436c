"""Every metric of `GET /metrics`: one table, and the registry that holds their values.

Some are told when something happens (`count`, `observe`), the others are read when somebody
scrapes. Names and rules follow vLLM's: monotonic clock, intervals as the listener saw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Kind = Literal["counter", "gauge", "histogram"]
Source = Literal["event", "scrape"]

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 120, 300, 600),
)
_TOKEN_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5),
)
_TOKENS = tuple(4**power for power in range(10))


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: as scraped; counters end in `_total`.
        kind: Prometheus' type.
        help: a sentence.
        labels: names of its labels, in order.
        buckets: upper bounds of a histogram, without infinity.
        source: told when it happens, or read at a scrape.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ("model",)
    buckets: tuple[float, ...] = ()
    source: Source = "scrape"


@dataclass(frozen=True, slots=True)
class Reading:
    """A value read at a scrape; `labels` are the label values, in the spec's order."""

    spec: MetricSpec
    value: float
    labels: tuple[str, ...] = ()


def _gauge(name: str, text: str, labels: tuple[str, ...] = ("model",)) -> MetricSpec:
    return MetricSpec(f"luce_{name}", "gauge", text, labels)


def _worker_counter(name: str, text: str) -> MetricSpec:
    return MetricSpec(f"luce_{name}_total", "counter", text)


def _event(name: str, text: str, labels: tuple[str, ...]) -> MetricSpec:
    return MetricSpec(f"luce_{name}_total", "counter", text, labels, source="event")


def _histogram(name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> MetricSpec:
    return MetricSpec(f"luce_{name}", "histogram", text, ("model",), buckets, "event")


BUILD_INFO = _gauge("build_info", "1, labelled with the version.", ("version",))
PROCESS_RESIDENT_BYTES = _gauge("process_resident_bytes", "Memory of the listener process.", ())
REQUESTS_WAITING = _gauge("requests_waiting", "Requests that wait for room in any model.", ())
QUEUE_LIMIT = _gauge("queue_limit", "Most requests that may wait.", ())

RESIDENT = _gauge(
    "resident",
    "1 for the state the model is in: loading, ready, restarting, unavailable; where models come "
    "and go also closing, evicted, entering, failed.",
    ("model", "device", "state"),
)
MODEL_SLOTS = _gauge("model_slots", "Requests the model may hold at a time.")
MODEL_SLOTS_RESERVED = _gauge(
    "model_slots_reserved",
    "Reservations: from submission until the worker has let go and the client has its output.",
)
REQUESTS_RUNNING = _gauge("requests_running", "Requests the worker holds.")
REQUESTS_DECODING = _gauge("requests_decoding", "Those of them that have given output.")
REQUESTS_SUSPENDED = _gauge(
    "requests_suspended", "Those of them that lost their KV blocks and wait to be recomputed."
)
KV_CACHE_USAGE_RATIO = _gauge(
    "kv_cache_usage_ratio", "Share of the KV pool that running requests hold, 0 to 1."
)
KV_CACHE_TOKENS = _gauge("kv_cache_tokens", "Tokens the KV pool holds at most.")
DEVICE_BYTES = _gauge("device_bytes", "Memory by use: weights, kv.", ("model", "device", "kind"))
WORKER_RESIDENT_BYTES = _gauge("worker_resident_bytes", "Host memory of the worker process.")

MODEL_LOADS = _worker_counter("model_loads", "Times the model came in after the start.")
MODEL_LOADS_FAILED = MetricSpec(
    "luce_model_loads_failed_total", "counter", "Times a model could not come in.", ()
)
SWAP_ACTIVE = _gauge("swap_active", "1 while a model is being brought in.", ())
WAITING_FOR_RESIDENCY = _gauge(
    "requests_waiting_for_residency", "Requests that wait for the model to come in."
)
LAST_EVICT_SECONDS = _gauge("last_evict_seconds", "How long the last eviction took.")
LAST_REINSTATE_SECONDS = _gauge("last_reinstate_seconds", "How long it last took to come in.")
HOST_WEIGHT_BYTES = _gauge("host_weight_bytes", "Weights in host memory while they are evicted.")
POOL_BYTES = _gauge(
    "pool_bytes",
    "The books of a device's memory, where bytes decide: total, free, ours, external, pending, "
    "returning, margin, avail.",
    ("device", "kind"),
)

PROMPT_TOKENS = _worker_counter("prompt_tokens", "Prompt tokens of admitted requests.")
GENERATION_TOKENS = _worker_counter("generation_tokens", "Tokens sampled.")
PREFIX_CACHE_QUERIES = _worker_counter(
    "prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
)
PREFIX_CACHE_HITS = _worker_counter("prefix_cache_hits", "Prompt tokens found there.")
STATE_CHECKPOINTS = _gauge(
    "state_checkpoints", "Saved recurrent states of a hybrid model that prompts can go on from."
)
STATE_CHECKPOINTS_RESTORED = _worker_counter(
    "state_checkpoints_restored", "Prompts that went on from one."
)
EXPERT_TOKENS = _worker_counter(
    "expert_tokens",
    "Tokens that a mixture's experts have had, each as often as it was routed, in all layers; "
    "what pads a step of a GPU counts too.",
)
EXPERT_IMBALANCE = _gauge(
    "expert_imbalance_ratio",
    "Tokens of a layer's busiest expert by those of its mean one, 1 to the number of experts.",
    ("model", "layer"),
)
EXPERTS_UNUSED = _gauge(
    "experts_unused", "Experts of a layer that have had no token.", ("model", "layer")
)
PREEMPTIONS = _worker_counter("preemptions", "Times a request lost its KV blocks to others.")
ENGINE_STEPS = _worker_counter("engine_steps", "Steps of the engine.")
WORKER_RESTARTS = _worker_counter("worker_restarts", "Processes of this model after the first.")

REQUEST_SUCCESS = _event(
    "request_success", "Generations that ended well.", ("model", "finished_reason")
)
REQUEST_FAILURE = _event(
    "request_failure",
    "Generation requests that ended otherwise: an error's code, client_gone or slow_reader. "
    "No model: none had taken it.",
    ("model", "reason"),
)
ROUTE_DECISIONS = _event(
    "route_decisions",
    "Admitted generations: the model that comes first, the one that served, and why: preferred "
    "(it is the first), named (the request named it), or what spoke against the first: busy, "
    "too_long, too_small, loading, restarting, unavailable, draining, an error's code.",
    ("from", "to", "reason"),
)
QUEUE_REJECTED = _event(
    "queue_rejected",
    "Requests refused while they looked for room: full, timeout, shutting_down.",
    ("reason",),
)

TIME_TO_FIRST_TOKEN = _histogram(
    "time_to_first_token_seconds", "Arrival to first output, of requests that had any."
)
REQUEST_QUEUE_TIME = _histogram(
    "request_queue_time_seconds", "Arrival to admission, of admitted requests."
)
REQUEST_PREFILL_TIME = _histogram(
    "request_prefill_time_seconds", "Admission to first output, of requests that had any."
)
REQUEST_DECODE_TIME = _histogram(
    "request_decode_time_seconds", "First output to last, of requests that ended well."
)
INTER_TOKEN_LATENCY = _histogram(
    "inter_token_latency_seconds",
    "Mean time between two tokens of a request, of requests that ended well with two or more.",
    _TOKEN_SECONDS,
)
E2E_REQUEST_LATENCY = _histogram(
    "e2e_request_latency_seconds", "Arrival to the last byte, of requests that ended well."
)
REQUEST_PROMPT_TOKENS = _histogram(
    "request_prompt_tokens", "Prompt length of requests that ended well.", _TOKENS
)
REQUEST_GENERATION_TOKENS = _histogram(
    "request_generation_tokens", "Output length of requests that ended well.", _TOKENS
)

_TABLE = (
    REQUESTS_RUNNING,
    REQUESTS_DECODING,
    REQUESTS_SUSPENDED,
    REQUESTS_WAITING,
    QUEUE_LIMIT,
    MODEL_SLOTS,
    MODEL_SLOTS_RESERVED,
    RESIDENT,
    KV_CACHE_USAGE_RATIO,
    KV_CACHE_TOKENS,
    PREFIX_CACHE_QUERIES,
    PREFIX_CACHE_HITS,
    STATE_CHECKPOINTS,
    STATE_CHECKPOINTS_RESTORED,
    EXPERT_TOKENS,
    EXPERT_IMBALANCE,
    EXPERTS_UNUSED,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    PREEMPTIONS,
    ENGINE_STEPS,
    WORKER_RESTARTS,
    MODEL_LOADS,
    MODEL_LOADS_FAILED,
    SWAP_ACTIVE,
    WAITING_FOR_RESIDENCY,
    LAST_EVICT_SECONDS,
    LAST_REINSTATE_SECONDS,
    HOST_WEIGHT_BYTES,
    POOL_BYTES,
    DEVICE_BYTES,
    WORKER_RESIDENT_BYTES,
    PROCESS_RESIDENT_BYTES,
    BUILD_INFO,
    REQUEST_SUCCESS,
    REQUEST_FAILURE,
    ROUTE_DECISIONS,
    QUEUE_REJECTED,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    E2E_REQUEST_LATENCY,
    REQUEST_QUEUE_TIME,
    REQUEST_PREFILL_TIME,
    REQUEST_DECODE_TIME,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
)


def table() -> tuple[MetricSpec, ...]:
    """Every metric there is, in the order of the documentation."""
    return _TABLE


class Metrics:
    """The values of all metrics of one server. Event loop only."""

    def __init__(self, read: Callable[[], Iterable[Reading]], models: Sequence[str] = ()) -> None:
        """Args:
        read: the values of the metrics that are read at a scrape; those it leaves out have none.
        models: names whose histograms are there, at zero, from the start.
        """
        # The library's time stamps double the number of series and nobody asked for them.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry(auto_describe=False)
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._registry.register(_Scraped(read))
        for spec in _TABLE:
            if spec.source == "event":
                self._create(spec, models)

    def count(self, spec: MetricSpec, *labels: str) -> None:
        """It happened once more; label values in the spec's order."""
        self._counters[spec.name].labels(*labels).inc()

    def observe(self, spec: MetricSpec, value: float, *labels: str) -> None:
        """One more value of a histogram; label values in the spec's order."""
        self._histograms[spec.name].labels(*labels).observe(value)

    def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """All values as text, and its content type.

        Args:
            accept: the client's Accept header; OpenMetrics if it asks for that.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def _create(self, spec: MetricSpec, models: Sequence[str]) -> None:
        if spec.kind == "counter":
            self._counters[spec.name] = Counter(
                spec.name, spec.help, spec.labels, registry=self._registry
            )
            return
        histogram = Histogram(
            spec.name, spec.help, spec.labels, registry=self._registry, buckets=spec.buckets
        )
        self._histograms[spec.name] = histogram
        for model in models:
            histogram.labels(model)


class _Scraped(Collector):
    """The metrics that are read, as the library wants them."""

    def __init__(self, read: Callable[[], Iterable[Reading]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Families in the table's order; one without a value is there with its help only."""
        families = {spec.name: _family(spec) for spec in _TABLE if spec.source == "scrape"}
        for reading in self._read():
            families[reading.spec.name].add_metric(reading.labels, reading.value)
        return families.values()


def _family(spec: MetricSpec) -> CounterMetricFamily | GaugeMetricFamily:
    if spec.kind == "counter":
        return CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
    return GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
