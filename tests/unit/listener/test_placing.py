"""Every model has its device and its sizes before its worker is started."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.model import ModelConfig
from luce.config.routing import RoutingConfig
from luce.errors import ModelFileError, PlacementError, UsageError
from luce.listener import placing
from luce.listener.placing import machine_for, place_models
from luce.loaders.file_identity import FileIdentity
from luce.placement.memory_plan import MemoryPlan
from luce.placement.planner import PlanRequest, plan_model
from luce.sizing.steps import GRAPH_BYTES, prompt_sizes
from luce.testing.tiny_models import tiny_llama

GIB = 1 << 30


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "devices.toml"
    path.write_text(
        "[[device]]\nid = 'cuda:0'\ntotal_mib = 24000\n[[device]]\nid = 'hip:0'\n"
        "[[device]]\nid = 'cpu:0'\ntotal_mib = 64000\n",
        encoding="ascii",
    )
    return path


def config(inventory: Path, *models: ModelConfig, budgets: tuple[str, ...] = ()) -> ServerConfig:
    routing = RoutingConfig(device_inventory=inventory, device_memory=budgets)
    return ServerConfig(listener=ListenerConfig(), models=models, routing=routing)


def place(settings: ServerConfig):  # type: ignore[no-untyped-def]
    return place_models(settings, machine_for(settings.routing, settings.models))


def test_the_worker_is_told_the_plans_sizes(inventory: Path, demo_model: Path) -> None:
    model = ModelConfig(path=demo_model, target_device="cpu:2", max_concurrency=2)
    (placed,) = place(config(inventory, model, budgets=("cpu:2=1GiB",)))
    assert (placed.device.id, placed.device.total_bytes) == ("cpu:2", GIB)
    assert placed.plan.sizes is not None
    assert placed.spec.max_ctx == placed.plan.sizes.max_ctx
    assert placed.spec.kv_pool_tokens == placed.plan.sizes.kv_pool_tokens
    assert (placed.spec.device, placed.spec.max_concurrency) == ("cpu:2", 2)
    assert placed.spec.files == FileIdentity.of(demo_model).digest


def test_a_file_that_changes_while_it_is_planned_is_not_taken_for_the_new_one(
    inventory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_llama(tmp_path)
    before = FileIdentity.of(path).digest

    def planned_late(request: PlanRequest) -> MemoryPlan:
        plan = plan_model(request)
        os.utime(path, ns=(1, 1))
        return plan

    monkeypatch.setattr(placing, "plan_model", planned_late)
    (placed,) = place(config(inventory, ModelConfig(path=path, target_device="cpu:0")))
    assert placed.spec.files == before != FileIdentity.of(path).digest


def test_prefixes_and_parked_weights_are_planned_on_the_host(
    inventory: Path, demo_model: Path
) -> None:
    models = [ModelConfig(path=demo_model, name=name, target_device="cuda:0") for name in "ab"]
    budgeted = [replace(models[0], prefix_snapshot_memory="1MiB"), models[1]]
    settings = config(inventory, *budgeted)
    one, other = place(settings)
    assert one.plan.host.kv_bytes == one.spec.prefix_snapshot_bytes == 1 << 20
    assert other.plan.host.kv_bytes == other.spec.prefix_snapshot_bytes > 1 << 20
    assert (one.spec.num_models, one.plan.host.weights_bytes) == (2, 0)
    assert not one.spec.takes_turns
    turns: dict[str, Any] = {
        "model_routing": "name",
        "swap_residency": True,
        "device_inventory": inventory,
    }
    for host_mib, is_parked in ((None, True), (1, False), (0, False)):
        routing = RoutingConfig(**turns, swap_host_mib=host_mib)
        one, _ = place(replace(settings, routing=routing))
        assert one.spec.takes_turns
        weights = one.plan.devices["cuda:0"].weights_bytes
        assert one.plan.host.weights_bytes == (weights if is_parked else 0)


@pytest.mark.parametrize("asked", [None, 4096])
def test_who_takes_turns_leaves_room_for_what_others_keep(
    inventory: Path, demo_model: Path, asked: int | None
) -> None:
    """The contexts and captured steps of two others; sizes that somebody asked for stay."""
    inventory.write_text(
        "[[device]]\nid = 'cuda:0'\ntotal_mib = 7000\n[[device]]\nid = 'cuda:1'\n"
        "total_mib = 7000\n[[device]]\nid = 'cpu:0'\ntotal_mib = 64000\n",
        encoding="ascii",
    )
    common: dict[str, Any] = {"path": demo_model, "max_concurrency": 64, "kv_pool_tokens": asked}
    models = [
        *(ModelConfig(name=name, target_device="cuda:0", **common) for name in "abc"),
        ModelConfig(name="d", target_device="cuda:1", **common),
    ]
    settings = config(inventory, *models)
    turns = RoutingConfig(model_routing="name", swap_residency=True, device_inventory=inventory)
    together = place(settings)
    apart = place(replace(settings, routing=turns))
    assert [model.spec.takes_turns for model in apart] == [True, True, True, False]
    kept = apart[1].plan.kept_bytes
    assert 600 << 20 < kept < 2 * GIB
    lost = [
        before.plan.bytes_on(before.device.uuid) - after.plan.bytes_on(after.device.uuid)
        for before, after in zip(together, apart, strict=True)
    ]
    # What takes turns captures no prompts, and plans for none.
    prompts = GRAPH_BYTES * len(prompt_sizes(64, 512))
    if asked is not None:
        assert lost == [prompts, prompts, prompts, 0]
        return
    assert all(2 * kept - (1 << 20) < each < 2 * kept + (1 << 20) for each in lost[:3])
    assert lost[3] == 0
    assert apart[0].spec.kv_pool_tokens < (together[0].spec.kv_pool_tokens or 0)


def test_auto_is_settled_and_its_reason_logged(
    inventory: Path, demo_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    auto = ModelConfig(path=demo_model, target_device="auto")
    (placed,) = place(config(inventory, auto))
    assert placed.config == replace(auto, target_device="cuda:0")
    assert placed.spec.device == "cuda:0"
    (record,) = [record for record in caplog.records if record.message == "device chosen"]
    assert vars(record)["reason"] == "the discrete GPU with most free memory that holds the model"


def test_auto_with_room_nowhere(inventory: Path, demo_model: Path) -> None:
    inventory.write_text("[[device]]\nid = 'cpu:0'\ntotal_mib = 700\n", encoding="ascii")
    auto = ModelConfig(path=demo_model, name="m", target_device="auto")
    with pytest.raises(PlacementError, match=r"--target-device auto: m: no device holds"):
        place(config(inventory, auto))


def test_what_can_never_fit_does_not_start(inventory: Path, demo_model: Path) -> None:
    model = ModelConfig(path=demo_model, name="m", max_ctx=8192, cpu_exact=True)
    with pytest.raises(PlacementError, match=r"not enough memory on cpu:0: m needs .* 1\.0 GiB"):
        place(config(inventory, model, budgets=("cpu=1GiB",)))


def test_more_copies_of_prefixes_than_the_host_has_memory(
    inventory: Path, demo_model: Path
) -> None:
    model = ModelConfig(path=demo_model, name="m", prefix_snapshot_memory="63TiB")
    with pytest.raises(PlacementError, match=r"--prefix-snapshot-memory of m is 63.0 TiB; the"):
        place(config(inventory, model))


def test_copies_of_prefixes_without_a_cache_are_told_of(
    inventory: Path, demo_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ModelConfig(path=demo_model, prefix_snapshot_memory="1GiB")
    place(config(inventory, model))
    assert "an option has no effect" not in caplog.messages
    (placed,) = place(config(inventory, replace(model, prefix_cache=False)))
    assert placed.spec.prefix_snapshot_bytes == 0
    (record,) = [each for each in caplog.records if each.message == "an option has no effect"]
    assert vars(record)["option"] == "--prefix-snapshot-memory"


def test_unknown_memory_is_told_and_left_to_the_worker(
    inventory: Path, demo_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ModelConfig(path=demo_model, target_device="hip:0")
    (placed,) = place(config(inventory, model))
    assert placed.plan.result == "unknown"
    assert (placed.spec.max_ctx, placed.spec.kv_pool_tokens) == (None, None)
    assert "memory is not planned" in caplog.messages


def test_a_shortened_context_is_told(
    inventory: Path, demo_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = ModelConfig(path=demo_model, cpu_exact=True)
    place(config(inventory, model, budgets=("cpu:0=1GiB",)))
    (record,) = [record for record in caplog.records if record.message == "memory plan"]
    assert "tokens instead of 8192: no more fits" in vars(record)["warning"]


def test_errors_of_files_and_options(inventory: Path, demo_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        place(config(inventory, ModelConfig(path=tmp_path / "missing.gguf")))
    with pytest.raises(UsageError, match="longer than the model's context"):
        place(config(inventory, ModelConfig(path=demo_model, max_ctx=1 << 20)))
    with pytest.raises(UsageError, match="--device-memory hip:3: no such device"):
        machine_for(RoutingConfig(device_inventory=inventory, device_memory=("hip:3=1GiB",)), [])


def test_what_a_profile_says_is_not_laid_at_the_authors_door(
    inventory: Path, demo_model: Path
) -> None:
    model = ModelConfig(
        path=demo_model, profile="x", max_ctx=32768, flags_of_profile=("--max-ctx",)
    )
    with pytest.raises(
        UsageError, match=r"^--max-ctx 32768 is longer .*; --max-ctx is set by --profile x"
    ):
        place(config(inventory, model))
