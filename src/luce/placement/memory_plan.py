"""What a model will take, byte for byte: the number that admission, loader and tools agree on.

A plan is made once for an identity, frozen, and handed to the worker as explicit values. Who
reads it compares devices by UUID, never by index. `planner` makes plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Literal

from luce.placement.devices import HOST_POOL, Inventory

PlanResult = Literal["ok", "cannot_fit", "unknown"]
"""ok: the bytes hold. cannot_fit: not even on empty devices, whoever is evicted. unknown: nobody
can say; the model needs every device of its set for itself, never "0 bytes"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """Bytes on one device, or on the host.

    Attributes:
        weights_bytes: parameters in the layout they are computed in.
        kv_bytes: keys and values, null block included.
        state_bytes: recurrent states of rows and checkpoints.
        compute_bytes: intermediate tensors of the largest step, and captured steps.
        overhead_bytes: context, libraries and the process itself.
    """

    weights_bytes: int = 0
    kv_bytes: int = 0
    state_bytes: int = 0
    compute_bytes: int = 0
    overhead_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum."""
        return sum(value for _, value in self.components())

    def components(self) -> Iterator[tuple[str, int]]:
        """Name and bytes of each part, in order."""
        for each in fields(self):
            yield each.name.removesuffix("_bytes"), getattr(self, each.name)


@dataclass(frozen=True, slots=True)
class PlanIdentity:
    """What a plan depends on; another identity needs another plan.

    Attributes:
        files: digest over size, modification time and header of every file of the checkpoint.
        options: every option that changes memory, name and value, sorted by name.
        device_uuids: the devices in order.
        version: of luce.
    """

    files: str
    options: tuple[tuple[str, str], ...]
    device_uuids: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True)
class FrozenSizes:
    """The values a worker is told, so that it need not fit again.

    Attributes:
        max_ctx: longest sequence in tokens.
        kv_pool_tokens: tokens the KV cache holds.
        prefix_snapshot_bytes: host memory for copies of prefixes; None: the worker finds out.
    """

    max_ctx: int
    kv_pool_tokens: int
    prefix_snapshot_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What one model takes.

    Attributes:
        identity: what it was made for.
        devices: by UUID, in the order of `identity.device_uuids`. Empty if and only if `result` is
            "unknown".
        host: of the machine's memory, beside what stands on a device of the host's pool: the
            process, copies of prefixes (`kv`) and parked weights (`weights`).
        result: whether the bytes hold.
        sizes: what the worker is told; None unless `result` is "ok".
        kept_bytes: of its device's memory, what its process keeps there though the model is evicted
            and its weights are in host memory: the context and captured steps.
        problem: why the result is not "ok", as a sentence.
        warnings: sentences for people.
    """

    identity: PlanIdentity
    devices: Mapping[str, DevicePlan] = field(default_factory=lambda: MappingProxyType({}))
    host: DevicePlan = DevicePlan()
    result: PlanResult
    sizes: FrozenSizes | None = None
    kept_bytes: int = 0
    problem: str = ""
    warnings: tuple[str, ...] = ()

    def bytes_on(self, device_uuid: str) -> int:
        """Planned bytes on a device; 0 where it places nothing."""
        plan = self.devices.get(device_uuid)
        return 0 if plan is None else plan.total_bytes


def pool_bytes(plan: MemoryPlan, inventory: Inventory) -> dict[str, int]:
    """Planned bytes by pool: on unified memory a device's and the host's are one sum."""
    pools: dict[str, int] = {}
    for uuid, parts in plan.devices.items():
        device = inventory.by_uuid(uuid)
        pool = uuid if device is None else device.pool
        pools[pool] = pools.get(pool, 0) + parts.total_bytes
    if plan.devices:
        pools[HOST_POOL] = pools.get(HOST_POOL, 0) + plan.host.total_bytes
    return pools
