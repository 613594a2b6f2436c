"""What is planned from headers is what the engine then allocates."""

from __future__ import annotations

from pathlib import Path

import pytest

from luce.placement.discovery import drivers, look_around
from luce.placement.planner import PlanRequest, frozen_spec, plan_model
from luce.protocol.messages import LoadSpec
from luce.worker.load import load_model

GIB = 1 << 30


@pytest.mark.parametrize(("cache", "exact"), [("auto", False), ("q8_0", True)])
def test_a_frozen_plan_loads_as_planned(demo_model: Path, cache: str, exact: bool) -> None:
    machine = look_around(drivers(), {"cpu:0": GIB})
    device = machine.device("cpu", 0)
    spec = LoadSpec(
        name="m", path=str(demo_model), cache_type_k=cache, cache_type_v=cache, cpu_exact=exact
    )
    plan = plan_model(PlanRequest(spec, device, machine.free_bytes(device)))
    assert plan.result == "ok"
    assert plan.sizes is not None
    assert plan.bytes_on("cpu:0") <= GIB
    model = load_model(frozen_spec(spec, plan), lambda *_: None)
    try:
        ready, parts = model.ready, plan.devices["cpu:0"]
        assert ready.limits.max_ctx == plan.sizes.max_ctx
        assert ready.limits.kv_pool_tokens == plan.sizes.kv_pool_tokens
        assert ready.kv_bytes == parts.kv_bytes
        assert ready.peak_bytes > ready.weights_bytes
        # Rotary angles are no parameters of the file: 64 float32 a position.
        angles = 4 * 64 * ready.limits.max_ctx
        assert parts.weights_bytes * 0.95 <= ready.weights_bytes <= parts.weights_bytes + angles
    finally:
        model.engine.close()
