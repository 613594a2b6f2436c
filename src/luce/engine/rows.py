"""What the engine keeps of every row between steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from luce.engine.sampling.masks import TokenMasks
from luce.engine.sampling.sampler import Sampler
from luce.scheduler.plan import RowStart


class RowState:
    """Per-row state on the device: the last token; sampling parameters are the sampler's.

    Args:
        max_rows: rows.
        sampler: told about every new occupant.
        device: where tokens are.

    Attributes:
        sampler: the rows' sampler.
    """

    def __init__(self, max_rows: int, sampler: Sampler, device: torch.device) -> None:
        self.sampler = sampler
        self._device = device
        self._last_token = torch.zeros(max_rows, dtype=torch.int32, device=device)

    def start(self, starts: Sequence[RowStart]) -> None:
        """New occupants replace the former ones, of whom nothing stays."""
        for start in starts:
            self.sampler.start(start)
            self._last_token[start.row] = start.history[-1]

    def last_tokens(self, rows: Sequence[int]) -> torch.Tensor:
        """The tokens these rows sampled last: i32 [n]."""
        return self._last_token.index_select(0, torch.tensor(rows, device=self._device))

    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[int],
        output_indices: Sequence[int],
        masks: TokenMasks | None = None,
    ) -> torch.Tensor:
        """Sample these rows and keep the tokens for their next step; see `Sampler.sample`."""
        ids = self.sampler.sample(logits, rows, output_indices, masks)
        index = torch.tensor(rows, device=self._device)
        # -1 marks a failed row; its sequence ends on the host, and a step already under way must
        # not read out of the vocabulary.
        self._last_token.index_copy_(0, index, ids.clamp_min(0).int())
        return ids
