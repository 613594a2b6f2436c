from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from luce.observability import metrics as m


def scraped(metrics: m.Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and labels."""
    text, _ = metrics.scrape()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def nothing() -> Iterable[m.Reading]:
    return ()


def test_the_table_is_consistent() -> None:
    specs = m.table()
    names = [spec.name for spec in specs]
    assert len(set(names)) == len(names)
    for spec in specs:
        assert re.fullmatch(r"luce_[a-z0-9_]+", spec.name)
        assert spec.name.endswith("_total") == (spec.kind == "counter"), spec.name
        assert bool(spec.buckets) == (spec.kind == "histogram"), spec.name
        assert list(spec.buckets) == sorted(set(spec.buckets)), spec.name
        assert spec.help.endswith("."), spec.name
        assert spec.source == "event" or spec.kind != "histogram", spec.name


def test_every_metric_defined_is_in_the_table() -> None:
    defined = [value for value in vars(m).values() if isinstance(value, m.MetricSpec)]
    assert sorted(spec.name for spec in defined) == sorted(spec.name for spec in m.table())


def test_the_names_dashboards_look_for() -> None:
    names = {spec.name for spec in m.table()}
    for name in (
        *("requests_running", "requests_waiting", "kv_cache_usage_ratio"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total"),
        *("prompt_tokens_total", "generation_tokens_total", "request_success_total"),
        *("time_to_first_token_seconds", "inter_token_latency_seconds"),
        *("e2e_request_latency_seconds", "request_queue_time_seconds"),
        *("request_prefill_time_seconds", "request_decode_time_seconds"),
        *("request_prompt_tokens", "request_generation_tokens"),
        *("route_decisions_total", "queue_rejected_total", "preemptions_total"),
        "worker_restarts_total",
    ):
        assert f"luce_{name}" in names


def test_every_metric_has_help_and_type_before_anything_happened() -> None:
    text = m.Metrics(nothing).scrape()[0].decode()
    described = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert described == {spec.name: spec.kind for spec in m.table()}
    assert set(re.findall(r"^# HELP (\S+) ", text, re.MULTILINE)) == set(described)


def test_counters_count_by_label() -> None:
    metrics = m.Metrics(nothing)
    for reason in ("busy", "busy", "too_long"):
        metrics.count(m.ROUTE_DECISIONS, "big", "small", reason)
    samples = scraped(metrics)
    labels = (("from", "big"), ("reason", "busy"), ("to", "small"))
    assert samples["luce_route_decisions_total", labels] == 2
    assert not [name for name, _ in samples if name.endswith("_created")]


def test_histograms_put_a_value_into_its_bucket_and_all_above() -> None:
    metrics = m.Metrics(nothing, ["big"])
    name = "luce_request_prompt_tokens"
    before = scraped(metrics)
    assert before[f"{name}_count", (("model", "big"),)] == 0
    metrics.observe(m.REQUEST_PROMPT_TOKENS, 16, "big")
    metrics.observe(m.REQUEST_PROMPT_TOKENS, 17, "big")
    samples = scraped(metrics)
    bucket = f"{name}_bucket"
    assert samples[bucket, (("le", "4.0"), ("model", "big"))] == 0
    assert samples[bucket, (("le", "16.0"), ("model", "big"))] == 1
    assert samples[bucket, (("le", "64.0"), ("model", "big"))] == 2
    assert samples[bucket, (("le", "+Inf"), ("model", "big"))] == 2
    assert samples[f"{name}_sum", (("model", "big"),)] == 33


def test_readings_are_read_anew_at_each_scrape() -> None:
    waiting = iter([3, 0])

    def read() -> Iterable[m.Reading]:
        yield m.Reading(m.REQUESTS_WAITING, next(waiting))
        yield m.Reading(m.PREEMPTIONS, 7, ("big",))

    metrics = m.Metrics(read)
    first, second = scraped(metrics), scraped(metrics)
    assert first["luce_requests_waiting", ()] == 3
    assert first["luce_preemptions_total", (("model", "big"),)] == 7
    assert second["luce_requests_waiting", ()] == 0


def test_odd_model_names_stay_one_label() -> None:
    metrics = m.Metrics(nothing)
    name = 'a "b"\\c\nd'
    metrics.count(m.REQUEST_SUCCESS, name, "stop")
    labels = (("finished_reason", "stop"), ("model", name))
    assert scraped(metrics)["luce_request_success_total", labels] == 1


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [
        ("", "text/plain; version=0.0.4", b"\n"),
        ("*/*", "text/plain; version=0.0.4", b"\n"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", b"# EOF\n"),
    ],
)
def test_the_format_is_the_one_asked_for(accept: str, content_type: str, end: bytes) -> None:
    text, said = m.Metrics(nothing).scrape(accept)
    assert said.startswith(content_type)
    assert text.endswith(end)


def test_two_servers_in_a_process_do_not_share_values() -> None:
    one, other = m.Metrics(nothing), m.Metrics(nothing)
    one.count(m.QUEUE_REJECTED, "full")
    key = ("luce_queue_rejected_total", (("reason", "full"),))
    assert scraped(one)[key] == 1
    assert key not in scraped(other)
