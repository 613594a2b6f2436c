"""Warm-up touches the null block alone."""

from __future__ import annotations

import pytest
import torch

from luce.engine.options import EngineInfo
from luce.engine.warm_up import warm_up_batches

INFO = EngineInfo("llama", "cpu", "float32", 100, 320, 21, 16, 5, 1, 1, 50)


@pytest.mark.parametrize(("chunk", "longest"), [(64, 64), (512, 100)])
def test_batches(chunk: int, longest: int) -> None:
    batches = list(warm_up_batches(INFO, chunk, torch.device("cpu")))
    assert [batch.input_ids.shape[0] for batch in batches] == [8, longest, 1, 5]
    assert [len(batch.sampled_rows) for batch in batches] == [1, 1, 1, 5]
    for batch in batches:
        assert batch.slot_mapping.max() < INFO.block_tokens
        assert set().union(*batch.attention.block_tables) == {0}
        assert int(batch.positions.max()) < INFO.max_ctx
        assert batch.logits_index is not None
        assert int(batch.logits_index[-1]) == batch.input_ids.shape[0] - 1


def test_one_row_is_not_run_twice() -> None:
    info = EngineInfo("llama", "cpu", "float32", 100, 320, 21, 16, 1, 1, 1, 50)
    assert len(list(warm_up_batches(info, 16, torch.device("cpu")))) == 3
