"""Rules between the options of residency and the model blocks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from luce.config.block import ModelBlock
from luce.config.residency import ResidencyConfig
from luce.config.setting import Settings
from luce.errors import UsageError

_NAME = "--model-routing name"
_SWAP = "--swap-residency"
_DEMAND = "--load-on-demand"

_NEEDS = {
    "unknown_model": _NAME,
    "swap_residency": _NAME,
    "load_on_demand": _NAME,
    "swap_keep_weights": _SWAP,
    "swap_host_mib": _SWAP,
    "swap_min_residency_ms": _SWAP,
    "swap_max_wait_ms": _SWAP,
    "swap_drain_timeout_s": _SWAP,
    "admission_policy": _DEMAND,
    "models_max": _DEMAND,
    "idle_unload_s": _DEMAND,
    "pin": _DEMAND,
    "preload": _DEMAND,
}
"""Field → what it is of no use without."""


def check_residency(
    settings: Settings, config: ResidencyConfig, blocks: Sequence[ModelBlock]
) -> None:
    """Check what is written about residency; what is of no use is refused, also a default.

    Raises:
        UsageError: names the flag, and the model it is about.
    """
    present = {_NAME: config.is_by_name, _SWAP: config.swap_residency}
    present[_DEMAND] = config.load_on_demand
    for field, needed in _NEEDS.items():
        if settings[field].is_written and not present[needed]:
            raise UsageError(f"--{field.replace('_', '-')} is only for {needed}")
    if config.swap_residency and config.load_on_demand:
        raise UsageError(f"{_SWAP} and {_DEMAND} exclude each other: write one of them")
    known = {block.config.name for block in blocks}
    _check_known("--swap-keep-weights", config.kept_weights, known)
    _check_known("--pin", config.pin, known)
    _check_known("--preload", config.preload, known)
    for flag, names in (("--preload", config.preload), ("--pin", config.pin)):
        at_once = len(set(names))
        if 0 < config.models_max < at_once:
            raise UsageError(
                f"{flag} names {at_once} models, and --models-max {config.models_max} has room "
                "for fewer"
            )


def _check_known(flag: str, names: Sequence[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise UsageError(f"{flag}: there is no model {name!r}; there are: {_list(known)}")


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))
