"""BlockPool against the simplest model of it: a dictionary of holders."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from luce.kv.block_pool import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """Takes, shares, drops and frees at random; idle blocks are those with no holder."""

    @initialize(num_blocks=st.integers(2, 9))
    def build(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.all_blocks = set(range(1, num_blocks))
        self.holders: dict[int, int] = {}

    @precondition(lambda self: len(self.holders) < len(self.all_blocks))
    @rule()
    def take(self) -> None:
        block = self.pool.take()
        assert block == min(self.all_blocks - self.holders.keys())
        self.holders[block] = 1

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.holders)))
        self.pool.share(block)
        self.holders[block] += 1

    @precondition(lambda self: any(self.holders.values()))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        held = sorted(block for block, count in self.holders.items() if count)
        block = data.draw(st.sampled_from(held))
        self.holders[block] -= 1
        assert self.pool.drop(block) == (self.holders[block] == 0)

    @precondition(lambda self: 0 in self.holders.values())
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        idle = sorted(block for block, count in self.holders.items() if count == 0)
        block = data.draw(st.sampled_from(idle))
        self.pool.free(block)
        del self.holders[block]

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free == len(self.all_blocks) - len(self.holders)
        for block in self.all_blocks:
            assert self.pool.num_holders(block) == self.holders.get(block, 0)


PoolMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
