"""The planner: one arithmetic, one frozen answer (spec swap-and-admission B2, B9)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from luce.errors import ModelFileError, UsageError
from luce.kv.spec import checkpoint_slots
from luce.loaders.checkpoint import Checkpoint
from luce.loaders.hparams import LinearAttention
from luce.placement.devices import HOST_POOL, Device, Inventory
from luce.placement.memory_plan import MemoryPlan, pool_bytes
from luce.placement.planner import (
    CONTEXT_BYTES,
    DEVICE_PROCESS_BYTES,
    LEAST_FITTED_CTX,
    PROCESS_BYTES,
    PlanRequest,
    frozen_spec,
    plan_checkpoint,
    plan_model,
)
from luce.protocol.messages import LoadSpec
from luce.sizing.steps import device_step_bytes, scratch_bytes
from luce.testing.headers import SMALL, header_checkpoint

MIB, GIB = 1 << 20, 1 << 30
CPU = Device(
    id="cpu:0", uuid="cpu:0", backend="cpu", name="x", total_bytes=64 * GIB, is_unified=True
)
GPU = Device(id="cuda:0", uuid="GPU-1", backend="cuda", name="x", total_bytes=24 * GIB)
LARGE: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_layers": 16,
    "num_heads": 32,
    "num_kv_heads": 8,
    "head_dim": 64,
    "vocab_size": 32000,
    "context_length": 1 << 17,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's files, as far as their sizes and times matter."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


def plan(folder: Path, device: Device = CPU, free: int | None = None, **options: Any) -> MemoryPlan:
    checkpoint: Checkpoint = options.pop("checkpoint", header_checkpoint())
    spec = LoadSpec(name="m", path=str(folder), **options)
    return plan_checkpoint(checkpoint, PlanRequest(spec, device, free))


def test_a_cpu_plan_says_what_the_engine_allocates(folder: Path) -> None:
    found = plan(folder, max_ctx=1024, kv_pool_tokens=2048, max_concurrency=2)
    assert found.result == "ok"
    parts = found.devices["cpu:0"]
    elements = sum(tensor.nbytes // 2 for tensor in _metas())
    # The embedding is tied, and packed once more as the output matrix.
    assert parts.weights_bytes == 4 * (elements + 1000 * 64)
    assert parts.kv_bytes == (2048 + 16) * 2 * 2 * 2 * 16 * 4
    gather = (2048 + 16) * 2 * 2 * 16 * 4
    assert parts.compute_bytes == scratch_bytes(SMALL, 512, 2, 4) + gather
    assert (parts.state_bytes, parts.overhead_bytes) == (0, 0)
    assert found.host.total_bytes == PROCESS_BYTES
    assert found.bytes_on("cpu:0") == sum(count for _, count in parts.components())


def test_a_gpu_plan_bounds_steps_and_counts_the_context(folder: Path) -> None:
    found = plan(folder, GPU, kv_pool_tokens=1024)
    parts = found.devices["GPU-1"]
    assert parts.weights_bytes == sum(tensor.nbytes for tensor in _metas())
    scratch = scratch_bytes(SMALL, 512, 4, 2)
    assert parts.compute_bytes == device_step_bytes(scratch, 4, 512)
    turns = plan(folder, GPU, kv_pool_tokens=1024, takes_turns=True).devices["GPU-1"]
    assert turns.compute_bytes == device_step_bytes(scratch, 4, 0) < parts.compute_bytes
    assert parts.overhead_bytes == CONTEXT_BYTES
    assert found.host.total_bytes == DEVICE_PROCESS_BYTES
    assert found.bytes_on("cuda:0") == 0  # a plan knows UUIDs alone


def test_states_of_a_hybrid(folder: Path) -> None:
    linear = LinearAttention(
        ("linear_attention", "full_attention"), 2, 4, 32, 16, 4, "grouped", True
    )
    hybrid = header_checkpoint(linear_attention=linear, architecture="qwen35")
    sizes = {"kv_pool_tokens": 64, "max_ctx": 64, "max_concurrency": 3}
    layer = 192 * 3 * 4 + 4 * 4 * 32 * 16
    for prefix_cache in (False, True):
        found = plan(folder, checkpoint=hybrid, prefix_cache=prefix_cache, **sizes)
        # Each row's, the padding's, and those kept for prefixes.
        slots = 3 + 1 + checkpoint_slots(3, prefix_cache)
        assert found.devices["cpu:0"].state_bytes == slots * layer


def test_what_the_worker_is_told_is_frozen(folder: Path) -> None:
    # B32: memory changes between plan and load.
    found = plan(folder)
    assert found.sizes is not None
    spec = LoadSpec(name="m", path=str(folder))
    told = frozen_spec(spec, found)
    assert told == msgspec.structs.replace(
        spec, max_ctx=found.sizes.max_ctx, kv_pool_tokens=found.sizes.kv_pool_tokens
    )
    for free in (GIB, 64 * GIB):
        again = plan_checkpoint(header_checkpoint(), PlanRequest(told, CPU, free))
        assert again.devices == found.devices


def test_a_context_nobody_asked_for_is_shortened_to_fit(folder: Path) -> None:
    # B31: the plan has the reduced bytes, the worker the reduced context.
    large = header_checkpoint(**LARGE)
    roomy = plan(folder, checkpoint=large)
    assert roomy.sizes is not None
    assert roomy.sizes.max_ctx == 8192
    least = plan(folder, checkpoint=large, max_ctx=LEAST_FITTED_CTX).bytes_on("cpu:0")
    tight = replace(CPU, total_bytes=least + 64 * MIB, is_declared=True)
    found = plan(folder, tight, checkpoint=large)
    assert found.result == "ok"
    assert found.sizes is not None
    assert LEAST_FITTED_CTX < found.sizes.max_ctx < 8192
    assert found.bytes_on("cpu:0") <= tight.total_bytes
    assert found.warnings == (
        f"the context is {found.sizes.max_ctx} tokens instead of 8192: no more fits",
    )


def test_a_context_somebody_asked_for_is_not(folder: Path) -> None:
    large = header_checkpoint(**LARGE)
    tight = replace(CPU, total_bytes=5 * GIB, is_declared=True)
    found = plan(folder, tight, checkpoint=large, max_ctx=65536)
    assert found.result == "cannot_fit"
    assert found.sizes is None


@pytest.mark.parametrize("device", [CPU, GPU])
def test_what_can_never_fit(folder: Path, device: Device) -> None:
    small = replace(device, total_bytes=GIB)
    found = plan(folder, small, checkpoint=header_checkpoint(**LARGE))
    assert found.result == "cannot_fit"
    assert found.bytes_on(device.uuid) > small.total_bytes - small.margin_bytes
    assert f"m needs {found.bytes_on(device.uuid) / GIB:.1f} GiB on {device.id}" in found.problem
    assert "weights" in found.problem
    assert "lower --max-ctx" in found.problem


def test_a_device_that_reports_nothing_is_unknown_and_never_zero(folder: Path) -> None:
    # B27, B30.
    silent = replace(GPU, total_bytes=0)
    found = plan(folder, silent)
    assert (found.result, found.sizes, dict(found.devices)) == ("unknown", None, {})
    assert "nobody says how much memory cuda:0 has" in found.problem
    spec = LoadSpec(name="m", path=str(folder))
    assert frozen_spec(spec, found) == spec


def test_the_pool_takes_what_is_free_and_the_plan_stays_in_it(folder: Path) -> None:
    large = header_checkpoint(**LARGE)
    sizes = []
    for free in (6 * GIB, 8 * GIB, 20 * GIB):
        found = plan(folder, GPU, free, checkpoint=large, max_concurrency=64)
        assert found.bytes_on("GPU-1") <= free
        assert found.sizes is not None
        sizes.append(found.sizes.kv_pool_tokens)
    assert sizes == sorted(set(sizes))


def test_what_is_free_now_does_not_make_a_model_impossible(folder: Path) -> None:
    found = plan(folder, GPU, 1, max_ctx=1024)
    assert found.result == "ok"
    assert found.bytes_on("GPU-1") > 1


def test_a_pool_shorter_than_the_context_is_told(folder: Path) -> None:
    found = plan(folder, max_ctx=4096, kv_pool_tokens=256)
    assert found.warnings == ("the KV pool holds 256 tokens, less than --max-ctx 4096",)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_ctx": 5000}, "--max-ctx 5000 is longer than the model's context of 4096"),
        ({"cache_type_k": "q3"}, "unknown --cache-type-k 'q3'"),
        ({"cache_type_v": "q8_0"}, "groups of 32 numbers, but this model's heads have 16"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
    ],
)
def test_options_that_do_not_go_with_the_model(
    folder: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        plan(folder, **options)


def test_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    spec = LoadSpec(name="m", path=str(tmp_path / "missing.gguf"))
    with pytest.raises(ModelFileError, match="no such file"):
        plan_model(PlanRequest(spec, CPU))


@pytest.mark.parametrize(
    "options",
    [
        {"max_ctx": 512},
        {"max_concurrency": 2},
        {"kv_pool_tokens": 640},
        {"chunk": 64},
        {"dtype": "bfloat16"},
        {"cache_type_k": "f16"},
        {"cache_type_v": "f16"},
    ],
)
def test_every_option_that_changes_memory_changes_the_identity(
    folder: Path, options: dict[str, Any]
) -> None:
    # B34.
    before, after = plan(folder), plan(folder, **options)
    assert before.identity != after.identity
    assert before.devices != after.devices
    assert plan(folder).identity == before.identity


def test_name_and_threads_do_not(folder: Path) -> None:
    assert plan(folder, threads=3).identity == plan(folder).identity


def test_files_and_device_are_part_of_the_identity(folder: Path) -> None:
    before = plan(folder).identity
    assert plan(folder, replace(CPU, uuid="cpu:1")).identity != before
    assert plan(folder, replace(CPU, id="cpu:5")).identity == before
    other = header_checkpoint(num_layers=3)
    assert plan(folder, checkpoint=other).identity != before
    (folder / "model.safetensors").write_bytes(b"longer")
    assert plan(folder).identity != before


def test_unified_memory_is_one_pool(folder: Path) -> None:
    # B44.
    integrated = replace(GPU, is_unified=True)
    found = plan(folder, integrated)
    both = found.bytes_on("GPU-1") + found.host.total_bytes
    assert pool_bytes(found, Inventory([integrated, CPU])) == {HOST_POOL: both}
    assert pool_bytes(found, Inventory([GPU, CPU])) == {
        "GPU-1": found.bytes_on("GPU-1"),
        HOST_POOL: found.host.total_bytes,
    }
    assert pool_bytes(plan(folder, replace(GPU, total_bytes=0)), Inventory([GPU])) == {}


def _metas() -> list[Any]:
    checkpoint = header_checkpoint()
    return [checkpoint.tensors.meta(name) for name in checkpoint.tensors.names()]


# --- what is kept on the host -----------------------------------------------------------------

HOST = 64 * GIB


def host_plan(folder: Path, device: Device = GPU, parked: int = 0, **options: Any) -> MemoryPlan:
    spec = LoadSpec(name="m", path=str(folder), **options)
    return plan_checkpoint(header_checkpoint(), PlanRequest(spec, device, None, HOST, parked))


def test_prefixes_are_part_of_the_hosts_figure_and_the_worker_is_told(folder: Path) -> None:
    found = host_plan(folder, max_ctx=1024)
    token = 2 * 2 * 2 * 16 * 2
    assert found.sizes is not None
    assert found.host.kv_bytes == found.sizes.prefix_snapshot_bytes == 3 * 1024 * token
    assert found.host.total_bytes == DEVICE_PROCESS_BYTES + found.host.kv_bytes
    told = frozen_spec(LoadSpec(name="m", path=str(folder)), found)
    assert told.prefix_snapshot_bytes == found.host.kv_bytes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prefix_snapshot_bytes": 12345}, 12345),
        ({"prefix_snapshot_bytes": 0}, 0),
        ({"prefix_cache": False}, 0),
    ],
)
def test_prefixes_that_were_spoken_of(folder: Path, options: dict[str, Any], expected: int) -> None:
    found = host_plan(folder, **options)
    assert found.host.kv_bytes == expected
    assert found.sizes is not None
    assert found.sizes.prefix_snapshot_bytes == expected


def test_models_share_a_quarter_of_the_host_for_prefixes(folder: Path) -> None:
    spec = LoadSpec(name="m", path=str(folder), max_ctx=1024, num_models=3)
    found = plan_checkpoint(header_checkpoint(), PlanRequest(spec, GPU, None, 120_000))
    assert found.host.kv_bytes == 10_000


@pytest.mark.parametrize(("left", "expected"), [(5000, 5000), (0, 0), (-5000, 0)])
def test_prefixes_never_take_what_the_model_needs_itself(
    folder: Path, left: int, expected: int
) -> None:
    spec = LoadSpec(name="m", path=str(folder), max_ctx=1024, kv_pool_tokens=1024)
    needed = plan_checkpoint(header_checkpoint(), PlanRequest(spec, CPU)).bytes_on("cpu:0")
    free = needed + PROCESS_BYTES + left
    found = plan_checkpoint(header_checkpoint(), PlanRequest(spec, CPU, free, free))
    assert found.host.kv_bytes == expected
    assert pool_bytes(found, Inventory([CPU]))[HOST_POOL] == needed + PROCESS_BYTES + expected


def test_weights_that_may_be_parked_are_part_of_the_hosts_figure(folder: Path) -> None:
    weights = host_plan(folder).devices["GPU-1"].weights_bytes
    assert host_plan(folder).host.weights_bytes == 0
    assert host_plan(folder, parked=weights).host.weights_bytes == weights
    # All of them or none.
    assert host_plan(folder, parked=weights - 1).host.weights_bytes == 0
    # A CPU's stay where they are.
    assert host_plan(folder, CPU, parked=weights).host.weights_bytes == 0
