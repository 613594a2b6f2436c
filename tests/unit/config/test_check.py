"""Rules between model blocks: how many, names, devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from luce.config.block import ModelBlock
from luce.config.check import check_blocks
from luce.config.setting import Setting, Source
from luce.errors import UsageError

MakeBlocks = Callable[..., list[ModelBlock]]


def on_cpu(**values: Any) -> dict[str, Any]:
    return {"target_device": "cpu:0"} | values


@pytest.mark.parametrize("load_balancing", [False, True])
def test_no_model(load_balancing: bool) -> None:
    with pytest.raises(UsageError, match="no model given"):
        check_blocks([], load_balancing)


def test_one_model_is_enough_without_balancing_and_too_few_with_it(
    make_blocks: MakeBlocks,
) -> None:
    blocks = make_blocks(on_cpu(name="big"))
    check_blocks(blocks, load_balancing=False)
    with pytest.raises(UsageError, match=r"two models or more; there is only block 1 \(big\)"):
        check_blocks(blocks, load_balancing=True)


def test_balanced_blocks_may_share_a_device(make_blocks: MakeBlocks) -> None:
    check_blocks(make_blocks(on_cpu(name="a"), on_cpu(name="b"), on_cpu()), load_balancing=True)


@pytest.mark.parametrize("load_balancing", [False, True])
@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("Qwen", "qwen"), ("ß", "SS")])
def test_equal_names_name_both_blocks(
    first: str, second: str, load_balancing: bool, make_blocks: MakeBlocks
) -> None:
    blocks = make_blocks(on_cpu(name="other"), on_cpu(name=first), on_cpu(name=second))
    with pytest.raises(UsageError) as raised:
        check_blocks(blocks, load_balancing)
    assert str(raised.value) == (
        f"--model-name must be unique: block 2 ({first}) and block 3 ({second}) have the same one"
    )


def test_blocks_without_a_name_clash_only_with_balancing(make_blocks: MakeBlocks) -> None:
    blocks = make_blocks(on_cpu(), on_cpu(), on_cpu(name="luce"))
    check_blocks(blocks, load_balancing=False)
    with pytest.raises(UsageError, match=r"block 1 \(luce\) and block 2 \(luce\)"):
        check_blocks(blocks, load_balancing=True)


@pytest.mark.parametrize("source", [Source.DEFAULT, Source.ENVIRONMENT])
def test_balancing_needs_a_device_written_in_every_block(
    source: Source, make_blocks: MakeBlocks
) -> None:
    first, second = make_blocks(on_cpu(name="a"), on_cpu(name="b"))
    settings = {**second.settings, "target_device": Setting("cpu:0", source)}
    blocks = [first, replace(second, settings=settings)]
    check_blocks(blocks, load_balancing=False)
    with pytest.raises(UsageError, match=r"^block 2 \(b\): .* needs a --target-device"):
        check_blocks(blocks, load_balancing=True)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"reasoning_effort_low": 5, "reasoning_effort_medium": 4}, "medium (4)|low (5)"),
        ({"reasoning_effort_low": 5, "reasoning_effort_max": 4}, "max (4)|low (5)"),
        ({"reasoning_effort_high": 5, "reasoning_effort_x_high": 0}, "x-high (0)|high (5)"),
    ],
)
def test_more_effort_gets_no_fewer_tokens(
    values: dict[str, int], problem: str, make_blocks: MakeBlocks
) -> None:
    higher, lower = problem.split("|")
    with pytest.raises(UsageError) as raised:
        check_blocks(make_blocks({"name": "a"}, {"name": "b", **values}), load_balancing=False)
    assert str(raised.value) == (
        f"block 2 (b): --reasoning-effort-{higher} must not be below --reasoning-effort-{lower}"
    )
    equal = dict.fromkeys(values, 7)
    check_blocks(make_blocks({"name": "a", **equal}), load_balancing=False)
