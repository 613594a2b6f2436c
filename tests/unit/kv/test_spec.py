"""Bytes of states, how many checkpoints of them there are, and room to grow."""

from __future__ import annotations

import pytest

from luce.kv.spec import StateSpec, checkpoint_slots, headroom_blocks

FAR = 10_000


def test_a_slot_holds_all_recurrent_layers_of_a_sequence() -> None:
    # Qwen3.5 27B: 48 layers of 48 heads of 128 x 128, and 3 inputs of 10240 channels in bf16.
    spec = StateSpec(48, 3 * 10240, 48 * 128 * 128, 2)
    assert spec.bytes_per_slot == 48 * (3 * 10240 * 2 + 48 * 128 * 128 * 4)
    assert 146 < spec.bytes_per_slot / 2**20 < 147


@pytest.mark.parametrize(
    ("rows", "prefix_cache", "slots"),
    [(1, True, 3), (4, True, 9), (15, True, 31), (16, True, 32), (64, True, 32), (4, False, 0)],
)
def test_checkpoints_grow_with_the_rows_up_to_a_limit(
    rows: int, prefix_cache: bool, slots: int
) -> None:
    assert checkpoint_slots(rows, prefix_cache) == slots


@pytest.mark.parametrize(
    ("num_tokens", "limit_tokens", "blocks"),
    [(1, FAR, 2), (4, FAR, 2), (5, FAR, 3), (5, 8, 2), (5, 9, 3), (4, 4, 1), (8, 3, 2)],
)
def test_headroom_is_one_block_but_not_past_the_limit(
    num_tokens: int, limit_tokens: int, blocks: int
) -> None:
    assert headroom_blocks(num_tokens, limit_tokens, 4) == blocks
