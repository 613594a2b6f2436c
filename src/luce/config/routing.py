"""Options of the whole launch: how its models share one address and one machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luce.config.device import parse_device
from luce.config.device_memory import DeviceMemory
from luce.config.option import option
from luce.config.residency import ResidencyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig(ResidencyConfig):
    """Which models load and in what order requests try them; resolved once, never mutated."""

    load_balancing: bool = option(
        False,
        "--load-balancing",
        help="Load every model: the primary serves, and while it has no room the others do, in "
        "their order. Needs two models or more, each with its own name and --target-device.",
    )
    primary_device: str | None = option(
        None,
        "--load-balancing-primary-gpu",
        metavar="DEVICE",
        check=parse_device,
        help="The primary is the one model on this target device; it moves nothing. Without "
        "--load-balancing it selects the only model that loads. Default: the first model.",
    )
    device_memory: tuple[str, ...] = option(
        (),
        "--device-memory",
        metavar="DEVICE=SIZE",
        check=DeviceMemory.parse,
        help="What models may use of a device, as cpu:0=16GiB; may be written once for each "
        "device. Default: what it has, less a margin of 3 % or 512 MiB.",
    )
    device_inventory: Path | None = option(
        None,
        "--device-inventory",
        metavar="FILE",
        help="Take the devices and their memory from this file (TOML or JSON) instead of the "
        "machine: for tests and dry runs.",
    )
    routing_gateway: Path | None = option(
        None,
        "--routing-gateway",
        metavar="PATH",
        help="Run this program, which gets the public address and is told ours. The server itself "
        "then listens on loopback alone, and ends when the program ends.",
    )
    routing_engine_port: int = option(
        8491,
        "--routing-engine-port",
        metavar="N",
        minimum=1,
        maximum=65535,
        help="The server's own port on loopback behind a gateway.",
    )

    @property
    def serves_all(self) -> bool:
        """Whether every model is served, not the primary alone."""
        return self.load_balancing or self.is_by_name

    @property
    def memory_budgets(self) -> dict[str, int]:
        """Bytes that may be used, by device id, where somebody said so."""
        budgets = map(DeviceMemory.parse, self.device_memory)
        return {budget.device: budget.nbytes for budget in budgets}
