"""The primary comes first, the others stay in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from luce.config.block import ModelBlock
from luce.config.priority import in_priority
from luce.config.routing import RoutingConfig
from luce.errors import UsageError

MakeBlocks = Callable[..., list[ModelBlock]]

THREE = ({"name": "a", "target_device": "cuda:0"},
         {"name": "b", "target_device": "hip:0"},
         {"name": "c", "target_device": "cpu"})  # fmt: skip


def order(blocks: list[ModelBlock], device: str | None, load_balancing: bool = True) -> str:
    routing = RoutingConfig(load_balancing=load_balancing, primary_device=device)
    return "".join(block.config.name for block in in_priority(blocks, routing))


@pytest.mark.parametrize("load_balancing", [False, True])
@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (None, "abc"),
        ("cuda:0", "abc"),
        ("cuda:00", "abc"),
        ("hip:0", "bac"),
        ("cpu", "cab"),
        ("cpu:0", "cab"),
    ],
)
def test_the_primary_comes_first(
    device: str | None, expected: str, load_balancing: bool, make_blocks: MakeBlocks
) -> None:
    assert order(make_blocks(*THREE), device, load_balancing) == expected


@pytest.mark.parametrize("device", ["cuda:1", "hip:1", "cpu:1"])
def test_no_block_on_the_primarys_device(device: str, make_blocks: MakeBlocks) -> None:
    with pytest.raises(UsageError) as raised:
        order(make_blocks(*THREE), device)
    assert str(raised.value) == (
        f"--load-balancing-primary-gpu {device} matches no model block: block 1 (a) is on cuda:0, "
        "block 2 (b) is on hip:0, block 3 (c) is on cpu"
    )


@pytest.mark.parametrize("second", ["cpu", "cpu:0", "cpu:00"])
def test_several_blocks_on_the_primarys_device(second: str, make_blocks: MakeBlocks) -> None:
    others: list[dict[str, Any]] = [{"name": "d", "target_device": second}]
    with pytest.raises(UsageError) as raised:
        order(make_blocks(*THREE, *others), "cpu:0")
    assert str(raised.value) == (
        "--load-balancing-primary-gpu cpu:0 matches several model blocks: block 3 (c) and "
        "block 4 (d)"
    )


def test_a_single_block_must_match_too(make_blocks: MakeBlocks) -> None:
    blocks = make_blocks({"name": "a"})
    assert order(blocks, "cpu", load_balancing=False) == "a"
    with pytest.raises(UsageError, match="matches no model block"):
        order(blocks, "cuda:0", load_balancing=False)
