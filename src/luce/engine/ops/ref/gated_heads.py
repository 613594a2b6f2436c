"""`ops.gated_heads.GatedHeads`, operation by operation."""

from __future__ import annotations

import torch

from luce.engine.ops.attention import AttentionStep, HeadShape
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.qkv import PlaceQkv, Placing


class ReferenceGatedHeads:
    """Copies and a product."""

    def split(self, projected: torch.Tensor, heads: HeadShape) -> torch.Tensor:
        """[T, (2H + 2K) * D] → [T, (H + 2K) * D]."""
        queries, _ = _queries_and_gates(projected, heads)
        others = projected[:, 2 * heads.num_heads * heads.head_dim :]
        return torch.cat([queries.flatten(1), others], dim=-1)

    def place(self, projected: torch.Tensor, placing: Placing, place_qkv: PlaceQkv) -> torch.Tensor:
        """`split`, then `place_qkv`."""
        packed = self.split(projected, placing.heads)
        place_qkv(packed, placing.heads, placing.norms, placing.places, placing.cache)
        return packed

    def attend(
        self,
        step: AttentionStep,
        packed: torch.Tensor,
        cache: KVCache,
        projected: torch.Tensor,
        heads: HeadShape,
    ) -> torch.Tensor:
        """Attention, then `gate`."""
        return self.gate(step(packed, cache), projected, heads)

    def gate(self, mixed: torch.Tensor, projected: torch.Tensor, heads: HeadShape) -> torch.Tensor:
        """mixed * sigmoid(gates)."""
        _, gates = _queries_and_gates(projected, heads)
        return mixed * gates.flatten(1).sigmoid()


def _queries_and_gates(
    projected: torch.Tensor, heads: HeadShape
) -> tuple[torch.Tensor, torch.Tensor]:
    num_heads, dim = heads.num_heads, heads.head_dim
    queries, gates = projected[:, : 2 * num_heads * dim].view(-1, num_heads, 2, dim).unbind(2)
    return queries, gates
