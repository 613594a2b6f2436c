"""How much host memory a worker gives to prefixes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from luce.engine.options import EngineInfo
from luce.kv.spec import StateSpec
from luce.protocol.messages import LoadSpec
from luce.worker.load import snapshot_bytes

PLENTY = 1 << 50
INFO = EngineInfo(
    architecture="llama",
    device="cpu",
    dtype="float32",
    max_ctx=1000,
    kv_pool_tokens=1600,
    num_blocks=101,
    block_tokens=16,
    max_rows=4,
    weights_bytes=1,
    kv_bytes=101 * 16 * 50,
    vocab_size=100,
)
STATE = StateSpec(num_layers=2, conv_elements=10, recurrent_elements=2000, conv_element_bytes=4)


def spec(**fields: object) -> LoadSpec:
    return LoadSpec(name="m", path="m", **fields)  # type: ignore[arg-type]


def test_three_full_contexts() -> None:
    assert snapshot_bytes(spec(), INFO, PLENTY) == 3 * 1000 * 50


@pytest.mark.parametrize(("num_models", "share"), [(1, 1000), (4, 250)])
def test_at_most_a_quarter_of_what_there_is_for_all_models(num_models: int, share: int) -> None:
    assert snapshot_bytes(spec(num_models=num_models), INFO, 4000) == share


def test_states_get_their_half() -> None:
    """Two for each row and one more."""
    info = replace(INFO, state=STATE, num_checkpoints=8)
    assert snapshot_bytes(spec(), info, PLENTY) == 2 * 9 * STATE.bytes_per_slot


@pytest.mark.parametrize("nbytes", [0, 12345, PLENTY])
def test_what_was_asked_for_is_taken(nbytes: int) -> None:
    assert snapshot_bytes(spec(prefix_snapshot_bytes=nbytes), INFO, 4000) == nbytes
