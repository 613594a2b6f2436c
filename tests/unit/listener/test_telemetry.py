from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from luce.config.model import ModelConfig
from luce.listener.context import new_context
from luce.listener.served import ServedModel, ServedModels
from luce.listener.telemetry import Telemetry
from luce.observability.timing import RequestTimings
from luce.protocol.messages import LoadSpec
from luce.routing.policy import PrimaryFirst
from luce.routing.router import Router
from luce.workers.handle import WorkerHandle

SERVED = {
    "model": "a",
    "finish": "stop",
    "prompt_tokens": 100,
    "cached_tokens": 40,
    "tokens": 11,
}


@pytest.fixture
def telemetry() -> Telemetry:
    router = Router(["a", "b"], PrimaryFirst(), 8)
    models = [
        ServedModel(
            ModelConfig(path=Path("x.gguf"), name=name),
            WorkerHandle(LoadSpec(name=name, path="x.gguf")),
        )
        for name in ("a", "b")
    ]
    return Telemetry(ServedModels(models, router), router)


def counted(telemetry: Telemetry, name: str) -> dict[tuple[str, ...], float]:
    """Label values of a counter to its value."""
    text, _ = telemetry.metrics.scrape()
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == f"luce_{name}" and sample.value
    }


def finish(
    telemetry: Telemetry,
    outcome: dict[str, Any],
    *,
    timings: RequestTimings | None = None,
    is_generation: bool = True,
) -> None:
    context = new_context([])
    context.outcome = outcome
    context.timings = timings or context.timings
    context.is_generation = is_generation
    telemetry.finished(context)


def ms(milliseconds: int) -> int:
    return milliseconds * 1_000_000


def test_rates_of_a_finished_request(telemetry: Telemetry) -> None:
    timings = RequestTimings(
        received_ns=ms(1000),
        admitted_ns=ms(1010),
        first_token_ns=ms(1310),
        last_token_ns=ms(1810),
        clock_ns=lambda: ms(1900),
    )
    finish(telemetry, SERVED, timings=timings)
    (entry,) = telemetry.history.recent()
    assert (entry.prompt_tokens, entry.cached, entry.completion_tokens) == (100, 40, 11)
    assert (entry.queue_ms, entry.ttft_ms) == (10, 310)
    assert entry.prefill_tok_s == pytest.approx(60 / 0.3)
    assert entry.decode_tok_s == pytest.approx(10 / 0.5)
    assert counted(telemetry, "inter_token_latency_seconds_sum")["a",] == pytest.approx(0.05)
    assert counted(telemetry, "e2e_request_latency_seconds_sum")["a",] == pytest.approx(0.9)


def test_a_prompt_found_whole_in_the_cache_has_no_prefill_rate(telemetry: Telemetry) -> None:
    finish(telemetry, {**SERVED, "cached_tokens": 100, "tokens": 0})
    (entry,) = telemetry.history.recent()
    assert (entry.prefill_tok_s, entry.decode_tok_s) == (None, None)


def test_only_generations_count(telemetry: Telemetry) -> None:
    finish(telemetry, {"error": "overloaded"}, is_generation=False)
    assert counted(telemetry, "request_failure_total") == {}
    assert counted(telemetry, "queue_rejected_total") == {}


@pytest.mark.parametrize(
    ("outcome", "failure", "rejected"),
    [
        ({"error": "overloaded"}, ("", "overloaded"), "full"),
        ({"error": "overloaded", "rejected": "timeout"}, ("", "overloaded"), "timeout"),
        ({"error": "shutting_down"}, ("", "shutting_down"), "shutting_down"),
        ({"error": "shutting_down", "model": "a"}, ("a", "shutting_down"), None),
        ({"error": "overloaded", "model": "a"}, ("a", "overloaded"), None),
        ({"error": "template_error"}, ("", "template_error"), None),
        ({**SERVED, "error": "client_gone"}, ("a", "client_gone"), None),
        ({"model": "a"}, ("a", "internal_error"), None),
    ],
)
def test_how_it_failed(
    telemetry: Telemetry, outcome: dict[str, Any], failure: tuple[str, ...], rejected: str | None
) -> None:
    finish(telemetry, outcome)
    assert counted(telemetry, "request_failure_total") == {failure: 1}
    assert counted(telemetry, "queue_rejected_total") == ({(rejected,): 1} if rejected else {})
    assert counted(telemetry, "request_success_total") == {}
    assert telemetry.history.recent() == []


@pytest.mark.parametrize(
    ("model", "passed_over", "reason"),
    [
        ("a", {}, "preferred"),
        ("a", {"b": "busy"}, "preferred"),
        ("b", {"a": "too long"}, "too_long"),
        ("b", {"a": "worker_lost"}, "worker_lost"),
    ],
)
def test_why_the_model_served(
    telemetry: Telemetry, model: str, passed_over: dict[str, str], reason: str
) -> None:
    finish(telemetry, {**SERVED, "model": model, "passed_over": passed_over})
    assert counted(telemetry, "route_decisions_total") == {("a", reason, model): 1}
