"""Options and geometry to numbers; the engine's own tests have the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from luce.errors import PlacementError
from luce.kv.spec import StateSpec
from luce.sizing.geometry import kv_spec
from luce.sizing.model_sizes import ModelGeometry, Room, check_fits, size_model
from luce.testing.headers import SMALL, header_checkpoint

GIB = 1 << 30
STATE = StateSpec(3, 576, 2048, 4)


@dataclass(frozen=True)
class Options:
    path: str = "x"
    max_ctx: int | None = None
    max_concurrency: int = 4
    kv_pool_tokens: int | None = None
    chunk: int = 512
    block_tokens: int = 16


GEOMETRY = ModelGeometry(header_checkpoint(), "float32", kv_spec(SMALL, 16, 4))


def test_states_of_rows_and_checkpoints() -> None:
    hybrid = replace(GEOMETRY, state=STATE, num_checkpoints=6)
    found = size_model(Options(), hybrid, Room("cpu", True, 4 * GIB))
    plain = size_model(Options(), GEOMETRY, Room("cpu", True, 4 * GIB))
    # Four rows, six checkpoints, one lane of padding.
    assert found.state_bytes == 11 * STATE.bytes_per_slot
    assert found.needed_bytes - plain.needed_bytes == found.state_bytes
    assert "states" in found.summary
    assert "states" not in plain.summary


def test_a_gpu_gives_all_its_room_to_the_pool_and_a_cpu_a_quarter() -> None:
    options = Options(max_concurrency=256)
    pools = []
    for is_cpu in (True, False):
        probe = size_model(options, GEOMETRY, Room("x", is_cpu, 0))
        fixed = probe.weights_bytes + probe.scratch_bytes
        fixed -= (probe.num_blocks + 1) * 16 * 2 * 2 * 16 * 4 if is_cpu else 0
        free = fixed + 4000 * GEOMETRY.kv.bytes_per_block
        pools.append(size_model(options, GEOMETRY, Room("x", is_cpu, free)).num_blocks)
    assert pools == [1000, 4000]


def test_what_does_not_fit() -> None:
    room = Room("cuda:0", False, 1 << 20)
    sizing = size_model(Options(), GEOMETRY, room)
    with pytest.raises(PlacementError, match=r"not enough memory on cuda:0: .* 1\.0 MiB free"):
        check_fits(sizing, room)
    check_fits(sizing, replace(room, free_bytes=sizing.needed_bytes))
