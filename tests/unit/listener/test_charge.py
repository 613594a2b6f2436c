"""What a loaded model counts as in the books."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from luce.config.listener import ListenerConfig, ServerConfig
from luce.config.model import ModelConfig
from luce.config.routing import RoutingConfig
from luce.listener.on_demand import charge_of, plan_by_pool, pools_of, resting_bytes
from luce.listener.placing import PlacedModel, machine_for, place_models
from luce.placement.ledger import Pool
from luce.placement.planner import CONTEXT_BYTES

GIB = 1 << 30


@pytest.fixture
def placed(tmp_path: Path, demo_model: Path) -> tuple[PlacedModel, dict[str, Pool]]:
    """The demo model on a GPU of a file."""
    inventory = tmp_path / "devices.toml"
    inventory.write_text("[[device]]\nid = 'cuda:0'\ntotal_mib = 24000\n", encoding="ascii")
    config = ServerConfig(
        listener=ListenerConfig(),
        models=(ModelConfig(path=demo_model, target_device="cuda:0", max_ctx=512),),
        routing=RoutingConfig(device_inventory=inventory),
    )
    machine = machine_for(config.routing, config.models)
    (model,) = place_models(config, machine)
    return model, pools_of(machine.inventory, [model.device])


def test_the_plan_holds_until_more_is_seen(
    placed: tuple[PlacedModel, dict[str, Pool]], caplog: pytest.LogCaptureFixture
) -> None:
    model, pools = placed
    planned = plan_by_pool(model, pools)
    assert charge_of({"luce": model}, pools, "luce", 0) == planned
    small = planned["cuda:0"] - CONTEXT_BYTES - 1
    assert charge_of({"luce": model}, pools, "luce", small) == planned
    assert caplog.records == []


def test_more_than_planned_counts_and_is_told(
    placed: tuple[PlacedModel, dict[str, Pool]], caplog: pytest.LogCaptureFixture
) -> None:
    model, pools = placed
    caplog.set_level(logging.WARNING)
    found = charge_of({"luce": model}, pools, "luce", 8 * GIB)
    assert found == plan_by_pool(model, pools) | {"cuda:0": 8 * GIB + CONTEXT_BYTES}
    (record,) = caplog.records
    assert record.message == "model takes more memory than planned"
    assert vars(record)["observed_bytes"] == 8 * GIB + CONTEXT_BYTES


def test_a_process_that_rests_holds_what_was_planned_on_the_host(demo_model: Path) -> None:
    config = ServerConfig(
        listener=ListenerConfig(),
        models=(ModelConfig(path=demo_model, target_device="cpu:0", max_ctx=512),),
        routing=RoutingConfig(),
    )
    machine = machine_for(config.routing, config.models)
    (model,) = place_models(config, machine)
    pools = pools_of(machine.inventory, [model.device])
    resting = resting_bytes(model, pools)
    assert resting == {"host": model.plan.host.total_bytes}
    assert model.plan.host.kv_bytes > 0
    assert plan_by_pool(model, pools)["host"] == resting["host"] + model.plan.bytes_on("cpu:0")


def test_where_the_host_is_in_no_book_nothing_rests(
    placed: tuple[PlacedModel, dict[str, Pool]],
) -> None:
    model, pools = placed
    assert resting_bytes(model, pools) == {}
