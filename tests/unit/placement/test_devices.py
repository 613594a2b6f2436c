"""What a device is, and what of it may be used."""

from __future__ import annotations

from dataclasses import replace

from luce.placement.devices import HOST_POOL, Device, Inventory

GIB = 1 << 30
GPU = Device(id="cuda:1", uuid="GPU-1", backend="cuda", name="x", total_bytes=24 * GIB)
CPU = Device(
    id="cpu:0", uuid="cpu:0", backend="cpu", name="x", total_bytes=8 * GIB, is_unified=True
)


def test_margin_is_a_share_and_at_least_512_mib() -> None:
    assert GPU.margin_bytes == 24 * GIB * 3 // 100
    assert CPU.margin_bytes == 512 << 20
    assert replace(GPU, is_declared=True).margin_bytes == 0


def test_unified_memory_is_the_hosts_pool_unless_a_share_was_declared() -> None:
    assert GPU.pool == "GPU-1"
    assert CPU.pool == HOST_POOL
    assert replace(GPU, is_unified=True).pool == HOST_POOL
    assert replace(CPU, is_declared=True).pool == "cpu:0"


def test_inventory_finds_by_id_and_uuid() -> None:
    inventory = Inventory([GPU, CPU])
    assert list(inventory) == [GPU, CPU]
    assert len(inventory) == 2
    assert inventory.by_id("cuda:1") is GPU
    assert inventory.by_id("cpu") is inventory.by_id("cpu:0") is CPU
    assert inventory.by_id("cuda:0") is None
    assert inventory.by_uuid("GPU-1") is GPU
    assert inventory.by_uuid("cuda:1") is None
    assert inventory.gpus == (GPU,)
