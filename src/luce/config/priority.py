"""The order in which requests try the models: the primary first, the others as written."""

from __future__ import annotations

from collections.abc import Sequence

from luce.config.block import ModelBlock
from luce.config.device import AUTO, parse_device
from luce.config.routing import RoutingConfig
from luce.errors import UsageError

_FLAG = "--load-balancing-primary-gpu"


def in_priority(blocks: Sequence[ModelBlock], routing: RoutingConfig) -> tuple[ModelBlock, ...]:
    """All blocks, the primary first.

    Args:
        blocks: at least one, in the order written.
        routing: names the primary's device, or nothing: then the first block is the primary.

    Raises:
        UsageError: no block or several are on the primary's device; names them.
    """
    if routing.primary_device is None:
        return tuple(blocks)
    primary = _only_one_on(routing.primary_device, blocks)
    return (primary, *(block for block in blocks if block is not primary))


def _only_one_on(device: str, blocks: Sequence[ModelBlock]) -> ModelBlock:
    wanted = parse_device(device)
    targets = [(block, block.config.target_device) for block in blocks]
    matching = [b for b, target in targets if target != AUTO and parse_device(target) == wanted]
    if not matching:
        places = ", ".join(f"{block.label} is on {block.config.target_device}" for block in blocks)
        raise UsageError(f"{_FLAG} {device} matches no model block: {places}")
    if len(matching) > 1:
        labels = " and ".join(block.label for block in matching)
        raise UsageError(f"{_FLAG} {device} matches several model blocks: {labels}")
    return matching[0]
