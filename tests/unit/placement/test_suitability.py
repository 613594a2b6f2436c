"""One model on each device of a machine, and the one it goes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luce.errors import ModelFileError
from luce.placement.discovery import Machine, drivers, look_around
from luce.placement.planner import PlanRequest, plan_checkpoint
from luce.placement.suitability import (
    candidates_for,
    choose_among,
    choose_for,
    one_sequence_plan,
)
from luce.protocol.messages import LoadSpec
from luce.testing.headers import header_checkpoint

MIB, GIB = 1 << 20, 1 << 30
CHECKPOINT = header_checkpoint(
    hidden_size=1024,
    intermediate_size=4096,
    num_layers=16,
    num_heads=16,
    num_kv_heads=16,
    head_dim=64,
    context_length=1 << 15,
)


@pytest.fixture
def spec(tmp_path: Path) -> LoadSpec:
    (tmp_path / "config.json").write_text("{}", encoding="ascii")
    return LoadSpec(name="m", path=str(tmp_path))


def machine(folder: Path, *devices: tuple[str, int]) -> Machine:
    path = folder / "devices.toml"
    lines = [f"[[device]]\nid = '{name}'\ntotal_mib = {mib}" for name, mib in devices]
    path.write_text("\n".join(lines), encoding="ascii")
    return look_around(drivers(path), {})


def test_every_device_is_a_candidate(spec: LoadSpec, tmp_path: Path) -> None:
    found = candidates_for(
        CHECKPOINT, spec, machine(tmp_path, ("cuda:0", 24000), ("hip:0", 0), ("cpu:0", 64000))
    )
    assert [each.device.id for each in found] == ["cuda:0", "hip:0", "cpu:0"]
    assert found[1].free_bytes is None
    assert all(each.needed_bytes > CHECKPOINT.file_bytes for each in found)
    # float32 on the CPU, bfloat16 on a GPU.
    gpu, _, cpu = (one_sequence_plan(CHECKPOINT, spec, each.device) for each in found)
    assert cpu.kv_bytes == 2 * gpu.kv_bytes


@pytest.mark.parametrize("options", [{}, {"max_ctx": 1024}, {"kv_pool_tokens": 640}])
def test_needed_is_one_sequence_unless_a_pool_was_asked_for(
    spec: LoadSpec, tmp_path: Path, options: dict[str, Any]
) -> None:
    device = machine(tmp_path, ("cuda:0", 24000)).device("cuda", 0)
    asked = LoadSpec(name="m", path=spec.path, **options)
    tokens = options.get("kv_pool_tokens", options.get("max_ctx", 8192))
    whole = LoadSpec(name="m", path=spec.path, **{**options, "kv_pool_tokens": tokens})
    expected = plan_checkpoint(CHECKPOINT, PlanRequest(whole, device)).devices["cuda:0"]
    assert one_sequence_plan(CHECKPOINT, asked, device) == expected


def test_a_shorter_context_is_better_than_no_device(spec: LoadSpec, tmp_path: Path) -> None:
    roomy = machine(tmp_path, ("cuda:0", 24000), ("cpu:0", 64000))
    (gpu, cpu) = candidates_for(CHECKPOINT, spec, roomy)
    tight = (gpu.needed_bytes + 512 * MIB) // MIB - 100
    choice = choose_among(CHECKPOINT, spec, machine(tmp_path, ("cuda:0", tight)))
    assert choice.device is not None
    assert choice.device.id == "cuda:0"
    assert choice.reason.endswith("holds the model, with a shorter context")
    asked = LoadSpec(name="m", path=spec.path, max_ctx=8192)
    refused = choose_among(CHECKPOINT, asked, machine(tmp_path, ("cuda:0", tight)))
    assert refused.device is None
    assert "no device holds the model" in refused.reason
    # But a device that holds all of it comes first.
    both = machine(tmp_path, ("cuda:0", tight), ("cpu:0", cpu.needed_bytes // MIB + 9000))
    found = choose_among(CHECKPOINT, spec, both).device
    assert found is not None
    assert found.id == "cpu:0"


def test_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    spec = LoadSpec(name="m", path=str(tmp_path / "missing.gguf"))
    with pytest.raises(ModelFileError, match="no such file"):
        choose_for(spec, machine(tmp_path, ("cpu:0", 1000)))
