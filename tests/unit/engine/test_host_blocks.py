"""Copies of blocks and states in host memory: exact, in any cache type, segment by segment."""

from __future__ import annotations

import pytest
import torch

from luce.engine import host_blocks
from luce.engine.device import Device
from luce.engine.host_blocks import HostBlocks, HostRoom
from luce.engine.kv_tensors import KVTensors, kv_tensors
from luce.engine.state_tensors import StateTensors
from luce.errors import PlacementError
from luce.kv.spec import KVSpec, KVType, StateSpec

CPU = Device("cpu", torch.device("cpu"))
STATE = StateSpec(num_layers=2, conv_elements=6, recurrent_elements=10, conv_element_bytes=4)


def spec_of(kind: KVType | None = None) -> KVSpec:
    return KVSpec("full", 3, 4, 2, 32, 4, kind, kind)


def random_cache(spec: KVSpec, *, by_head: bool = False) -> KVTensors:
    cache = kv_tensors(spec, 10, torch.float32, torch.device("cpu"), by_head=by_head)
    cache.blocks.copy_(torch.randint(0, 255, cache.blocks.shape, dtype=torch.uint8))
    return cache


class Bench:
    def __init__(self, spec: KVSpec, room: HostRoom, *, by_head: bool = False) -> None:
        self.cache = random_cache(spec, by_head=by_head)
        self.states = StateTensors(STATE, 2, 3, torch.float32, torch.device("cpu"))
        self.store = HostBlocks(room, lambda: (self.cache, self.states), spec, STATE, CPU)


@pytest.mark.parametrize("most", [1, 64])
@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("kind", [None, "f16", "q8_0", "q4_0"])
def test_blocks_come_back_exactly_and_elsewhere(
    kind: KVType | None, by_head: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(kind)
    # Two slots a segment.
    monkeypatch.setattr(host_blocks, "_SEGMENT_BYTES", 2 * spec.bytes_per_block + 5)
    bench = Bench(spec, HostRoom(7, 0), by_head=by_head)
    monkeypatch.setattr(bench.store, "_most", most)
    before = bench.cache.blocks.clone()
    slots = [0, 1, 2, 6, 4]
    bench.store.save_blocks([5, 9, 1, 2, 3], slots)
    bench.cache = random_cache(spec, by_head=by_head)
    kept = bench.cache.blocks.clone()
    bench.store.load_blocks(slots, [1, 2, 3, 4, 9])
    for there, block in zip([1, 2, 3, 4, 9], [5, 9, 1, 2, 3], strict=True):
        assert torch.equal(bench.cache.blocks[:, there], before[:, block])
    # Nothing else was written.
    for other in (0, 5, 6, 7, 8):
        assert torch.equal(bench.cache.blocks[:, other], kept[:, other])


def test_blocks_are_the_memory_the_layers_look_at() -> None:
    for kind in (None, "q8_0"):
        for by_head in (False, True):
            cache = random_cache(spec_of(kind), by_head=by_head)  # type: ignore[arg-type]
            cache.blocks.zero_()
            layer = cache.layers[1]
            plain = layer if isinstance(layer, torch.Tensor) else layer.keys.data
            plain[7].fill_(1)
            seen = cache.blocks.bool().any(-1).nonzero().tolist()
            assert seen == [[1, 7]]


def test_states_come_back_exactly() -> None:
    bench = Bench(spec_of(), HostRoom(1, 2))
    for part in bench.states.checkpoint(1):
        part.copy_(torch.randn(part.shape))
    before = [part.clone() for part in bench.states.checkpoint(1)]
    bench.store.save_state(1, 1)
    bench.states = StateTensors(STATE, 2, 3, torch.float32, torch.device("cpu"))
    bench.store.load_state(1, 2)
    for part, expected in zip(bench.states.checkpoint(2), before, strict=True):
        assert torch.equal(part, expected)
    assert not any(part.bool().any() for part in bench.states.checkpoint(1))


def test_memory_is_taken_as_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of()
    monkeypatch.setattr(host_blocks, "_SEGMENT_BYTES", 2 * spec.bytes_per_block)
    taken: list[int] = []
    take = host_blocks.host_buffer
    monkeypatch.setattr(host_blocks, "host_buffer", lambda n, d: (taken.append(n), take(n, d))[1])
    bench = Bench(spec, HostRoom(5, 0))
    assert taken == []
    bench.store.save_blocks([1], [1])
    bench.store.save_blocks([2, 3], [0, 4])
    assert taken == [2 * spec.bytes_per_block, spec.bytes_per_block]


def test_memory_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(spec_of(), HostRoom(2, 1))

    def exhausted(*_: object) -> None:
        raise RuntimeError("can't allocate memory\nand more")

    monkeypatch.setattr(host_blocks, "host_buffer", exhausted)
    with pytest.raises(PlacementError, match=r"prefixes: can't allocate memory$"):
        bench.store.save_blocks([1], [0])
    with pytest.raises(PlacementError):
        bench.store.save_state(0, 0)


def test_room() -> None:
    spec = spec_of()
    block, state = spec.bytes_per_block, STATE.bytes_per_slot
    assert HostRoom.within(5 * block + 1, spec, None) == HostRoom(5, 0)
    assert HostRoom.within(block - 1, spec, None) == HostRoom(0, 0)
    # Half for states; what they leave is for blocks.
    assert HostRoom.within(4 * state, spec, STATE) == HostRoom(2 * state // block, 2)
    # Blocks without a state to go on from are of no use.
    assert HostRoom.within(2 * state - 2, spec, STATE) == HostRoom(0, 0)
