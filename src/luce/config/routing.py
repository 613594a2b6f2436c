"""Options of the whole launch: how its models share one address."""

from __future__ import annotations

from dataclasses import dataclass

from luce.config.device import parse_device
from luce.config.option import option


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
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
