"""A model that goes and comes back: the same text, its prefixes still there, no memory kept.

Rows A25 (`same_text_and_no_second_prefill`), A27 (`ten_cycles`) and A32 of the specification.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from resident_worker import ResidentWorker

from luce.engine import assembly, host_blocks
from luce.observability.memory import resident_bytes
from luce.protocol import messages as wire
from luce.protocol.sampling import SamplingParams
from luce.sizing import model_sizes
from luce.testing.byte_tokenizer import pack_prompt
from luce.testing.tiny_models import tiny_llama, tiny_qwen2, tiny_qwen3, tiny_qwen35

PROMPT = tuple(range(5, 85))
LEVELS = ("cold", "host", "warm")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def worker(path: Path) -> Iterator[ResidentWorker]:
    worker = ResidentWorker(path)
    yield worker
    worker.close()


@pytest.mark.parametrize("level", LEVELS)
def test_same_text_and_no_second_prefill(worker: ResidentWorker, level: wire.EvictionLevel) -> None:
    before, cached = worker.generate(PROMPT)
    assert cached == 0
    gone = worker.control("evict", level)
    assert (gone.error, gone.snapshots_lost) == ("", 0)
    assert worker.control("reinstate").error == ""
    assert worker.generate(PROMPT) == (before, 64)


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q4_0"])
def test_quantised_caches_come_back(path: Path, cache_type: str) -> None:
    worker = ResidentWorker(path, cache_type_k=cache_type, cache_type_v=cache_type)
    worker.generate(PROMPT)
    again, cached = worker.generate(PROMPT)
    worker.control("evict", "cold")
    worker.control("reinstate")
    assert worker.generate(PROMPT) == (again, cached)
    assert cached == 64
    worker.close()


@pytest.mark.parametrize("family", [tiny_qwen2, tiny_qwen3])
def test_tied_and_other_families(tmp_path: Path, family) -> None:
    worker = ResidentWorker(family(tmp_path / "model"))
    before, _ = worker.generate(PROMPT)
    for level in LEVELS:
        worker.control("evict", level)
        worker.control("reinstate")
        assert worker.generate(PROMPT) == (before, 64)
    worker.close()


def test_what_each_level_keeps(worker: ResidentWorker) -> None:
    weights = worker.model.ready.weights_bytes
    warm = worker.control("evict", "warm")
    assert (warm.retained_bytes, warm.host_bytes) == (weights, 0)
    host = worker.control("evict", "host")
    assert (host.retained_bytes, host.host_bytes) == (0, weights)
    cold = worker.control("evict", "cold")
    assert (cold.retained_bytes, cold.host_bytes) == (0, 0)
    # Nothing comes back by being asked to go.
    again = worker.control("evict", "warm")
    assert (again.error, again.retained_bytes, again.host_bytes) == ("", 0, 0)


def test_reinstating_what_is_there_changes_nothing(worker: ResidentWorker) -> None:
    before, _ = worker.generate(PROMPT)
    assert worker.control("reinstate").error == ""
    assert worker.generate(PROMPT) == (before, 64)


def test_an_evicted_model_admits_nothing(worker: ResidentWorker) -> None:
    worker.control("evict", "cold")
    submit = wire.Submit("late", pack_prompt(PROMPT), SamplingParams(max_tokens=1))
    assert wire.Refused("late", "draining") in worker.turn(submit)
    worker.control("reinstate")
    assert worker.generate(PROMPT)[0]


def test_a_busy_model_stays(worker: ResidentWorker) -> None:
    submit = wire.Submit("r", pack_prompt(PROMPT), SamplingParams(max_tokens=4))
    sent = worker.turn(submit, wire.Control(7, "evict", "cold"))
    done = next(each for each in sent if isinstance(each, wire.ControlDone))
    assert done.error.startswith("rejected")
    retired = next(each for each in sent if isinstance(each, wire.Retired))
    assert (retired.finish, retired.usage.completion_tokens) == ("length", 4)


def test_a_model_on_one_device_has_nothing_to_keep_elsewhere(worker: ResidentWorker) -> None:
    assert worker.control("evict", "partial").error.startswith("rejected")
    assert worker.generate(PROMPT)[0]


def test_a_file_that_changed_is_not_served(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path)
    worker = ResidentWorker(path)
    before, _ = worker.generate(PROMPT)
    worker.control("evict", "cold")
    whole = path.read_bytes()
    status = path.stat()
    path.write_bytes(whole[: len(whole) // 2])
    broken = worker.control("reinstate")
    assert "has changed since" in broken.error
    assert worker.turn(wire.Submit("no", pack_prompt(PROMPT), SamplingParams(max_tokens=1)))[
        0
    ] == wire.Refused("no", "draining")
    path.write_bytes(whole)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert worker.control("reinstate").error == ""
    assert worker.generate(PROMPT) == (before, 64)
    worker.close()


def test_no_memory_for_the_cache_leaves_it_evicted(
    worker: ResidentWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = worker.generate(PROMPT)
    worker.control("evict", "host")

    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(assembly, "kv_tensors", exhausted)
        assert "ran out of memory" in worker.control("reinstate").error
    assert worker.control("reinstate").error == ""
    assert worker.generate(PROMPT) == (before, 64)


def test_the_environment_of_the_first_load_counts(
    worker: ResidentWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = worker.model.engine.resolved
    monkeypatch.setenv("LUCE_NATIVE", "plain")
    monkeypatch.setattr(model_sizes, "DEFAULT_MAX_CTX", 64)
    worker.control("evict", "cold")
    worker.control("reinstate")
    engine = worker.model.engine
    assert engine.resolved == before
    assert engine._runner.kv.nbytes == before.kv_bytes
    assert assembly.engine_info(engine._blueprint, engine._weights.built) == before


def test_prefixes_that_host_memory_does_not_hold_are_counted(path: Path) -> None:
    probe = ResidentWorker(path)
    block = probe.model.engine._blueprint.kv_spec.bytes_per_block
    probe.close()
    worker = ResidentWorker(path, prefix_snapshot_bytes=3 * block)
    worker.generate(PROMPT)
    newest = tuple(range(100, 140))
    worker.generate(newest)
    gone = worker.control("evict", "host")
    assert gone.snapshots_lost == 1
    worker.control("reinstate")
    assert worker.generate(newest)[1] == 32
    assert worker.generate(PROMPT)[1] <= 16
    worker.close()


def test_without_host_memory_everything_is_computed_again(path: Path) -> None:
    worker = ResidentWorker(path, prefix_snapshot_bytes=0)
    before, _ = worker.generate(PROMPT)
    assert worker.control("evict", "host").snapshots_lost == 1
    worker.control("reinstate")
    assert worker.generate(PROMPT) == (before, 0)
    worker.close()


def test_host_memory_that_cannot_be_had_loses_prefixes_and_nothing_else(
    worker: ResidentWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, _ = worker.generate(PROMPT)

    def exhausted(*_: object) -> None:
        raise MemoryError("no")

    with monkeypatch.context() as patch:
        patch.setattr(host_blocks, "host_buffer", exhausted)
        gone = worker.control("evict", "cold")
    assert (gone.error, gone.snapshots_lost) == ("", 1)
    worker.control("reinstate")
    assert worker.generate(PROMPT) == (before, 0)


def test_a_prefix_that_the_pool_had_to_give_up_comes_back(path: Path) -> None:
    worker = ResidentWorker(path, max_ctx=128, kv_pool_tokens=128, max_concurrency=1)
    before, _ = worker.generate(PROMPT)
    worker.generate(tuple(range(100, 200)))
    assert worker.generate(PROMPT) == (before, 64)
    assert worker.model.scheduler.stats().kv.recalled_blocks > 0
    worker.close()


def test_ten_cycles_keep_no_memory(demo_model: Path) -> None:
    worker = ResidentWorker(demo_model, max_ctx=512)
    worker.generate(range(5, 101))
    sizes = []
    for _ in range(10):
        worker.control("evict", "cold")
        sizes.append(resident_bytes() or 0)
        worker.control("reinstate")
        assert worker.generate(range(5, 101))[1] == 80
    assert sizes[-1] - sizes[0] < 16 << 20
    # And it was given back at all: the model alone takes more.
    assert (resident_bytes() or 0) - sizes[-1] > worker.model.ready.weights_bytes // 2
    worker.close()


def test_recurrent_states_come_back_with_their_blocks(tmp_path: Path) -> None:
    worker = ResidentWorker(tiny_qwen35(tmp_path), max_concurrency=2)
    prompt = tuple(range(5, 205))
    before, _ = worker.generate(prompt)
    again, cached = worker.generate(prompt)
    assert (again, cached > 0) == (before, True)
    for level in LEVELS:
        assert worker.control("evict", level).snapshots_lost == 0
        worker.control("reinstate")
        assert worker.generate(prompt) == (before, cached)
    worker.close()


@pytest.mark.parametrize("level", LEVELS)
def test_log_probabilities_are_the_same_behind_a_swap(
    worker: ResidentWorker, level: wire.EvictionLevel
) -> None:
    def logprobs(request_id: str) -> list[object]:
        params = SamplingParams(max_tokens=6, logprobs=3)
        sent = worker.turn(wire.Submit(request_id, pack_prompt(PROMPT), params))
        outputs = [each for each in sent if isinstance(each, wire.StepOutput)]
        return [entry for out in outputs for d in out.deltas for entry in d.logprobs or ()]

    worker.generate(PROMPT)
    before = logprobs("before")
    worker.control("evict", level)
    worker.control("reinstate")
    assert len(before) == 6
    assert logprobs("after") == before
