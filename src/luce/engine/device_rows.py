"""What a GPU keeps of every row between steps: tokens, block table, sampling parameters.

There is one row more than the engine serves: padding lanes of a captured step read and write it,
greedy and without penalties, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np
import torch

from luce.engine.device import upload, upload_into
from luce.engine.ops.triton.sampling import MAX_BIAS, RowParams
from luce.engine.packed_ids import packed_ids
from luce.engine.sampling.bounds import usable_factor, usable_temperature, usable_term
from luce.kv.spec import blocks_for
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart, ScheduledSequence


class DeviceRows:
    """Rows on a device.

    Args:
        max_rows: rows that serve.
        max_ctx: longest sequence in tokens.
        block_tokens: tokens of a KV block.
        vocab_size: V.
        device: where.

    Attributes:
        padding_row: the row of padding lanes.
        params: what sampling reads, tokens included.
        tables: i32 [rows, M]: blocks of every row.
    """

    def __init__(
        self,
        max_rows: int,
        max_ctx: int,
        block_tokens: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        def zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.zeros(max_rows + 1, *shape, dtype=dtype, device=device)

        self.device = device
        self.padding_row = max_rows
        self.tables = zeros(torch.int32, blocks_for(max_ctx, block_tokens))
        self.params = RowParams(
            floats=zeros(torch.float32, 6),
            ints=zeros(torch.int32, 5),
            bias_ids=zeros(torch.int32, MAX_BIAS),
            bias_values=zeros(torch.float32, MAX_BIAS),
            tokens=zeros(torch.int32, max_ctx + 1),
        )
        self._max_ctx = max_ctx
        self._vocab_size = vocab_size
        self._long_biases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._adjusted: set[int] = set()

    def start(self, starts: Sequence[RowStart]) -> None:
        """New occupants replace the former ones, of whom nothing stays but tokens."""
        if not starts:
            return
        for start in starts:
            self._start_bias(start.row, start.sampling.logit_bias)
            if start.sampling.logit_bias or _has_penalties(start.sampling):
                self._adjusted.add(start.row)
            else:
                self._adjusted.discard(start.row)
        floats = np.array([_floats(start.sampling) for start in starts], dtype=np.float32)
        ints = np.array([self._ints(start) for start in starts], dtype=np.uint32).view(np.int32)
        if len(starts) == 1:
            upload_into(self.params.floats[starts[0].row], floats[0])
            upload_into(self.params.ints[starts[0].row], ints[0])
            return
        # One copy for all: each costs the host as much as a kernel.
        rows = np.array([start.row for start in starts], dtype=np.int64)
        parts = [part.ravel().view(np.int32) for part in (rows, floats, ints)]
        sent = upload(np.concatenate(parts), self.device)
        index, values, numbers = torch.split(sent, [part.size for part in parts])
        index = index.view(torch.int64)
        values = values.view(torch.float32).view(floats.shape)
        self.params.floats.index_copy_(0, index, values)
        self.params.ints.index_copy_(0, index, numbers.view(ints.shape))

    def bring_histories(self, starts: Sequence[RowStart]) -> None:
        """The new occupants' tokens, which take the host longest.

        A step reads those of rows with penalties, and of rows that go on from their last token.
        """
        if not starts:
            return
        if len(starts) == 1:
            history = packed_ids(starts[0].history)
            upload_into(self.params.tokens[starts[0].row, : len(history)], history)
            return
        tokens = packed_ids([*chain.from_iterable(start.history for start in starts)])
        sizes = [len(start.history) for start in starts]
        sent = torch.split(upload(tokens, self.device), sizes)
        for start, own in zip(starts, sent, strict=True):
            self.params.tokens[start.row, : len(own)] = own

    def reads_histories(
        self, starts: Sequence[RowStart], items: Sequence[ScheduledSequence]
    ) -> bool:
        """Whether a step reads tokens of rows that it starts."""
        begun = {start.row for start in starts}
        return not begun.isdisjoint(item.row for item in items if not item.token_ids) or any(
            _has_penalties(start.sampling) for start in starts
        )

    def forget(self) -> None:
        """All rows are empty; what the device has of former occupants, the next ones replace."""
        self._long_biases.clear()
        self._adjusted.clear()

    def _start_bias(self, row: int, bias: dict[int, float]) -> None:
        self._long_biases.pop(row, None)
        if not bias:
            return
        ids = upload(np.array(tuple(bias), dtype=np.int32), self.device)
        terms = tuple(map(usable_term, bias.values()))
        values = upload(np.array(terms, dtype=np.float32), self.device)
        if len(bias) > MAX_BIAS:
            self._long_biases[row] = ids, values
        else:
            self.params.bias_ids[row, : len(bias)] = ids
            self.params.bias_values[row, : len(bias)] = values

    def _ints(self, start: RowStart) -> tuple[int, ...]:
        params = start.sampling
        window = max(0, min(params.rep_window, self._max_ctx)) if _has_penalties(params) else 0
        num_biases = len(params.logit_bias) if len(params.logit_bias) <= MAX_BIAS else 0
        top_k = params.top_k if 0 < params.top_k < self._vocab_size else 0
        return top_k, window, num_biases, start.seed & 0xFFFFFFFF, start.seed >> 32

    def has_long_bias(self, rows: Iterable[int]) -> bool:
        """Whether one of these rows has more biases than the kernels hold."""
        return bool(self._long_biases) and any(row in self._long_biases for row in rows)

    def has_adjusted(self, rows: Sequence[int]) -> bool:
        """Whether penalties or biases change the logits of one of these rows."""
        return any(row in self._adjusted for row in rows)

    def add_long_biases(self, logits: torch.Tensor, rows: Sequence[int]) -> None:
        """Add the biases that the kernels do not hold, once they have applied the penalties.

        Args:
            logits: f32 [n, V]; changed.
            rows: row of each line.
        """
        for line, row in enumerate(rows):
            bias = self._long_biases.get(row)
            if bias is not None:
                logits[line].index_add_(0, bias[0], bias[1])


def _has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
    )


def _floats(params: SamplingParams) -> tuple[float, ...]:
    return (
        usable_temperature(params.temperature),
        params.top_p,
        params.min_p,
        # Below 1 it is off, as the interface we follow has it.
        usable_factor(params.repetition_penalty),
        usable_term(params.frequency_penalty),
        usable_term(params.presence_penalty),
    )
