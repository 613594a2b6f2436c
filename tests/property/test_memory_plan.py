"""Memory plans over all options: more is never less, and what is frozen stays."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from luce.placement.devices import Device
from luce.placement.memory_plan import MemoryPlan
from luce.placement.planner import PlanRequest, frozen_spec, plan_checkpoint
from luce.protocol.messages import LoadSpec
from luce.testing.headers import header_checkpoint

GIB = 1 << 30
FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, FOLDER)
(FOLDER / "config.json").write_text("{}", encoding="ascii")
CHECKPOINT = header_checkpoint(
    hidden_size=512,
    intermediate_size=1024,
    num_layers=8,
    num_heads=8,
    num_kv_heads=8,
    head_dim=64,
    context_length=1 << 16,
)
CPU = Device(id="cpu:0", uuid="u", backend="cpu", name="x", total_bytes=256 * GIB, is_unified=True)
GPU = Device(id="cuda:0", uuid="u", backend="cuda", name="x", total_bytes=80 * GIB)

devices = st.sampled_from([CPU, GPU])
specs = st.builds(
    LoadSpec,
    name=st.just("m"),
    path=st.just(str(FOLDER)),
    dtype=st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
    max_ctx=st.none() | st.integers(2, 1 << 16),
    max_concurrency=st.integers(1, 256),
    kv_pool_tokens=st.none() | st.integers(32, 1 << 20),
    chunk=st.integers(16, 65536),
    cache_type_k=st.sampled_from(["auto", "f32", "f16", "q8_0", "q4_0"]),
    cache_type_v=st.sampled_from(["auto", "f32", "f16", "q8_0", "q4_0"]),
)
free_bytes = st.none() | st.integers(0, 100 * GIB)


def plan(spec: LoadSpec, device: Device, free: int | None = None) -> MemoryPlan:
    return plan_checkpoint(CHECKPOINT, PlanRequest(spec, device, free))


@given(specs, devices, st.integers(2, 1 << 16), st.integers(1, 1 << 12))
def test_a_longer_context_never_takes_less(
    spec: LoadSpec, device: Device, ctx: int, more: int
) -> None:
    shorter = msgspec.structs.replace(spec, max_ctx=min(ctx, 1 << 16))
    longer = msgspec.structs.replace(spec, max_ctx=min(ctx + more, 1 << 16))
    assert plan(shorter, device).bytes_on("u") <= plan(longer, device).bytes_on("u")


@given(specs, devices, st.integers(1, 64))
def test_more_rows_never_take_less(spec: LoadSpec, device: Device, more: int) -> None:
    wider = msgspec.structs.replace(spec, max_concurrency=spec.max_concurrency + more)
    before, after = plan(spec, device), plan(wider, device)
    # A pool fitted to the memory shrinks as steps grow; all else only grows.
    fixed = [p.bytes_on("u") - p.devices["u"].kv_bytes for p in (before, after)]
    if spec.kv_pool_tokens is not None:
        assert fixed[0] <= fixed[1]
    assert before.devices["u"].weights_bytes == after.devices["u"].weights_bytes


@given(specs, devices, free_bytes)
def test_a_plan_that_is_ok_fits_an_empty_device_and_is_never_nothing(
    spec: LoadSpec, device: Device, free: int | None
) -> None:
    found = plan(spec, device, free)
    assert all(count >= 0 for _, count in found.devices["u"].components())
    assert found.devices["u"].weights_bytes > 0
    fits = found.bytes_on("u") <= device.total_bytes - device.margin_bytes
    assert (found.result == "ok") == fits == (found.sizes is not None)


@given(specs, devices, free_bytes, free_bytes)
def test_a_frozen_plan_is_the_same_whatever_is_free_later(
    spec: LoadSpec, device: Device, free: int | None, later: int | None
) -> None:
    found = plan(spec, device, free)
    if found.result == "ok":
        again = plan(frozen_spec(spec, found), device, later)
        assert (again.devices, again.sizes) == (found.devices, found.sizes)
