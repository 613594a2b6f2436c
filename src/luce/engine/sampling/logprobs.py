"""Log probabilities of chosen and likeliest tokens, by the raw logits; paid by rows that ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from luce.engine.device import upload
from luce.protocol.sampling import TokenLogprobs


@dataclass(frozen=True, slots=True)
class RawLogprobs:
    """What some of a step's lines report, taken before sampling changes the logits.

    Attributes:
        lines: the k lines that ask.
        counts: how many of the likeliest tokens each asks for.
        index: i64 [k], `lines` on the device.
        values: f32 [k, V].
    """

    lines: tuple[int, ...]
    counts: tuple[int, ...]
    index: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, wanted: Sequence[int | None]) -> RawLogprobs | None:
        """Take them of those lines of [n, V] whose count is not None; None: nobody asks."""
        asking = [(line, count) for line, count in enumerate(wanted) if count is not None]
        if not asking:
            return None
        lines, counts = zip(*asking, strict=True)
        index = upload(np.array(lines), logits.device)
        values = torch.log_softmax(logits.index_select(0, index).float(), dim=-1)
        return cls(lines, counts, index, values)

    def packed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Everything the host needs, as one small tensor.

        Args:
            token_ids: i32 or i64 [n], negative for a row that failed.

        Returns:
            i32 [k * (1 + 2 N)], N being the largest count: of each line the bits of its token's
            value, then those of the likeliest tokens' values, then their ids.
        """
        chosen = token_ids.index_select(0, self.index).clamp_min(0).long().unsqueeze(1)
        top = self.values.topk(self._most, dim=-1)
        values = torch.cat([self.values.gather(1, chosen), top.values], dim=1).view(torch.int32)
        return torch.cat([values, top.indices.int()], dim=1).flatten()

    def unpacked(self, packed: Sequence[int], num_lines: int) -> tuple[TokenLogprobs | None, ...]:
        """What `packed` brought to the host: one entry for each of the step's lines."""
        width = 1 + self._most
        table = np.array(packed, dtype=np.int32).reshape(len(self.lines), -1)
        values = np.ascontiguousarray(table[:, :width]).view(np.float32).tolist()
        ids = table[:, width:].tolist()
        report: list[TokenLogprobs | None] = [None] * num_lines
        for place, (line, count) in enumerate(zip(self.lines, self.counts, strict=True)):
            own, *top = values[place]
            report[line] = TokenLogprobs(own, tuple(ids[place][:count]), tuple(top[:count]))
        return tuple(report)

    @property
    def _most(self) -> int:
        return min(max(self.counts), self.values.shape[-1])
