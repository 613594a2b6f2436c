"""Rules between options, which no single one can check. Pure; touches no file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from luce.config.block import ModelBlock
from luce.config.setting import Settings
from luce.errors import UsageError


def check_blocks(blocks: Sequence[ModelBlock], load_balancing: bool) -> None:
    """Check the blocks of one launch against each other, served or not.

    Raises:
        UsageError: names the block or both blocks, and what to write instead.
    """
    if not blocks:
        raise UsageError(
            "no model given: write its path first, or --model PATH, or --demo, or a [[model]] "
            "table in the file of --config"
        )
    if load_balancing:
        _check_balanced(blocks)
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


def _check_balanced(blocks: Sequence[ModelBlock]) -> None:
    if len(blocks) < 2:
        raise UsageError(
            f"--load-balancing needs two models or more; there is only {blocks[0].label}"
        )
    for block in blocks:
        if not block.settings["target_device"].is_written:
            raise UsageError(
                f"{block.label}: --load-balancing needs a --target-device in every model block"
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
