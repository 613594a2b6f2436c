"""Host memory for copies of cached prefixes, as loader and planner count it."""

from __future__ import annotations

from dataclasses import dataclass

from luce.kv.spec import StateSpec

_CONTEXTS = 3
_SHARE_OF_AVAILABLE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSizes:
    """What the size of a model's prefixes depends on.

    Attributes:
        max_ctx: longest sequence in tokens.
        block_bytes: of a KV block over all layers.
        block_tokens: tokens of a block.
        max_rows: sequences at a time.
        state: what is kept per sequence beside KV blocks.
    """

    max_ctx: int
    block_bytes: int
    block_tokens: int
    max_rows: int
    state: StateSpec | None = None

    @property
    def wanted_bytes(self) -> int:
        """Three full contexts; with recurrent states twice as many states as there are rows and
        one more."""
        contexts = _CONTEXTS * self.max_ctx * self.block_bytes // self.block_tokens
        if self.state is None:
            return contexts
        # States get half of what there is.
        return max(contexts, 2 * (2 * self.max_rows + 1) * self.state.bytes_per_slot)


def automatic_bytes(sizes: SnapshotSizes, available_bytes: int, num_models: int) -> int:
    """What a model takes if nobody says how much: never more than its share of a quarter of what
    is available."""
    return min(sizes.wanted_bytes, available_bytes // _SHARE_OF_AVAILABLE // num_models)
