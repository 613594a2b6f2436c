"""Rules between options, which no single one can check. Pure; touches no file."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from itertools import pairwise

from luce.config.block import ModelBlock
from luce.config.device import AUTO
from luce.config.profile import PROFILES
from luce.config.routing import RoutingConfig
from luce.config.setting import Settings
from luce.errors import UsageError


def check_blocks(
    blocks: Sequence[ModelBlock], load_balancing: bool, *, by_name: bool = False
) -> None:
    """Check the blocks of one launch against each other, served or not.

    Args:
        blocks: in the order written.
        load_balancing: whether all of them are served.
        by_name: whether that is because names select them.

    Raises:
        UsageError: names the block or both blocks, and what to write instead.
    """
    if not blocks:
        raise UsageError(
            "no model given: write its path first, or --model PATH, or --demo, or a [[model]] "
            "table in the file of --config"
        )
    if load_balancing:
        _check_balanced(blocks, "--model-routing name" if by_name else "--load-balancing")
    for block in blocks:
        _check_tiers(block)
    _check_names_unique([b for b in blocks if load_balancing or b.settings["name"].is_written])


def check_listener(settings: Settings) -> None:
    """Check the server's options against each other.

    Raises:
        UsageError: one makes another meaningless.
    """
    if settings["uds"].value is not None:
        for field in ("host", "port"):
            if settings[field].is_written:
                raise UsageError(f"--uds and --{field} exclude each other: write one of them")
    if settings["tls_key"].value is not None and settings["tls_cert"].value is None:
        raise UsageError("--tls-key needs the certificate it belongs to: write --tls-cert too")
    if settings["cors_origin"].value and not settings["cors"].value:
        raise UsageError("--no-cors and --cors-origin exclude each other: write one of them")


def check_routing(routing: RoutingConfig) -> None:
    """Check the options of the launch against each other.

    Raises:
        UsageError: a device has two budgets.
    """
    if len(routing.memory_budgets) < len(routing.device_memory):
        budgets = ", ".join(routing.device_memory)
        raise UsageError(f"--device-memory names a device twice: {budgets}")


def check_gateway(routing: Settings, listener: Settings) -> None:
    """Check the options of a gateway against those of the server's address.

    Raises:
        UsageError: an option without effect, or both on one port.
    """
    if routing["routing_gateway"].value is None:
        if routing["routing_engine_port"].is_written:
            raise UsageError("--routing-engine-port needs --routing-gateway")
        return
    for field in ("uds", "tls_cert"):
        if listener[field].value is not None:
            flag = f"--{field.replace('_', '-')}"
            raise UsageError(
                f"--routing-gateway and {flag} exclude each other: the public address is the "
                "gateway's"
            )
    port = routing["routing_engine_port"].value
    is_apart = _is_apart_from_loopback(listener["host"].value)
    if listener["port"].value == port and not is_apart:
        raise UsageError(
            f"--port and --routing-engine-port are both {port}: gateway and server need one each"
        )


def _is_apart_from_loopback(host: str) -> bool:
    """Whether an address certainly leaves 127.0.0.1 free."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    is_loopback = str(address) == "127.0.0.1"
    return not (is_loopback or address.is_unspecified)


def _check_balanced(blocks: Sequence[ModelBlock], flag: str) -> None:
    if len(blocks) < 2:
        raise UsageError(f"{flag} needs two models or more; there is only {blocks[0].label}")
    for block in blocks:
        if not block.settings["target_device"].is_written:
            raise UsageError(f"{block.label}: {flag} needs a --target-device in every model block")
        profile = PROFILES.get(block.config.profile or "")
        if profile is not None and profile.env:
            raise UsageError(
                f"{block.label}: --profile {profile.name} sets environment variables, which all "
                f"models would share; it does not go with {flag}"
            )
        if block.config.target_device == AUTO:
            raise UsageError(
                f"{block.label}: --target-device auto chooses for one model; with {flag} name a "
                "device in every model block"
            )


def _check_tiers(block: ModelBlock) -> None:
    """More effort must not get fewer tokens."""
    tiers = list(block.config.effort_tiers.items())
    for (lower, fewer), (higher, more) in pairwise(tiers):
        if more < fewer:
            raise UsageError(
                f"{block.label}: --reasoning-effort-{higher} ({more}) must not be below "
                f"--reasoning-effort-{lower} ({fewer})"
            )


def _check_names_unique(blocks: Sequence[ModelBlock]) -> None:
    """Names that differ only in case count as equal: a typo should fail, not pick the other."""
    first_with: dict[str, ModelBlock] = {}
    for block in blocks:
        other = first_with.setdefault(block.config.name.casefold(), block)
        if other is not block:
            raise UsageError(
                f"--model-name must be unique: {other.label} and {block.label} have the same one"
            )
