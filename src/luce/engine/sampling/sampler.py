"""From logits to token ids: each row by its own parameters, whatever stands beside it.

The chain is that of `SamplingParams`: penalties, bias, masks, then greedy or draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from luce.engine.sampling.bounds import usable_factor, usable_temperature, usable_term
from luce.engine.sampling.draw import Choose, DrawParams, choose
from luce.engine.sampling.masks import TokenMasks, apply_masks
from luce.engine.sampling.penalties import PenaltyStrengths, TokenWindows, apply_penalties
from luce.engine.sampling.rng import uniform
from luce.protocol.sampling import SamplingParams
from luce.scheduler.plan import RowStart


@dataclass(frozen=True, slots=True)
class _Occupant:
    """What a row's sequence brings.

    Attributes:
        bias_ids: i64 [k], on the device.
        bias_values: f32 [k].
    """

    params: SamplingParams
    seed: int
    has_penalties: bool
    bias_ids: torch.Tensor | None
    bias_values: torch.Tensor | None


class Sampler:
    """Samples rows; holds their parameters and windows.

    Args:
        max_rows: rows.
        vocab_size: V.
        max_ctx: longest sequence; no window needs to be longer.
        device: where logits are.
        choose: makes tokens of logits.
    """

    def __init__(
        self,
        max_rows: int,
        vocab_size: int,
        max_ctx: int,
        device: torch.device,
        choose: Choose = choose,
    ) -> None:
        self._choose = choose
        self._device = device
        self._max_ctx = max_ctx
        self._occupants: list[_Occupant | None] = [None] * max_rows
        self._windows = TokenWindows(max_rows, vocab_size, device)

    def start(self, start: RowStart) -> None:
        """Give a row a new sequence; nothing of the former one stays."""
        params = start.sampling
        window = min(params.rep_window, self._max_ctx)
        has_penalties = window > 0 and (
            params.repetition_penalty != 1
            or params.frequency_penalty != 0
            or params.presence_penalty != 0
        )
        if has_penalties:
            self._windows.start(start.row, start.history, window)
        ids = tuple(params.logit_bias)
        values = [usable_term(value) for value in params.logit_bias.values()]
        self._occupants[start.row] = _Occupant(
            params=params,
            seed=start.seed,
            has_penalties=has_penalties,
            bias_ids=torch.tensor(ids, device=self._device) if ids else None,
            bias_values=torch.tensor(values, device=self._device) if ids else None,
        )

    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[int],
        output_indices: Sequence[int],
        masks: TokenMasks | None = None,
    ) -> torch.Tensor:
        """Choose one token a row and remember it where penalties need it.

        Args:
            logits: f32 [B, V]; overwritten.
            rows: row of each line; all started, no two the same.
            output_indices: index in the row's output of the token chosen now.
            masks: tokens to choose from, of the lines that may not choose any.

        Returns:
            i64 [B]; -1 where the logits are not numbers.
        """
        occupants = [self._occupant(row) for row in rows]
        penalised = [line for line, each in enumerate(occupants) if each.has_penalties]
        self._penalise(logits, penalised, rows, occupants)
        for line, occupant in enumerate(occupants):
            if occupant.bias_ids is not None and occupant.bias_values is not None:
                logits[line].index_add_(0, occupant.bias_ids, occupant.bias_values)
        if masks is not None:
            apply_masks(logits, masks)
        params = [
            self._params(occupant, index)
            for occupant, index in zip(occupants, output_indices, strict=True)
        ]
        ids = self._choose(logits, params)
        if penalised:
            self._windows.append([rows[line] for line in penalised], ids[penalised].clamp_min(0))
        return ids

    def _occupant(self, row: int) -> _Occupant:
        occupant = self._occupants[row]
        assert occupant is not None, f"row {row} was never started"
        return occupant

    def _penalise(
        self,
        logits: torch.Tensor,
        lines: list[int],
        rows: Sequence[int],
        occupants: list[_Occupant],
    ) -> None:
        if not lines:
            return
        params = [occupants[line].params for line in lines]

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, device=self._device).unsqueeze(1)

        strengths = PenaltyStrengths(
            repetition=column([usable_factor(each.repetition_penalty) for each in params]),
            frequency=column([usable_term(each.frequency_penalty) for each in params]),
            presence=column([usable_term(each.presence_penalty) for each in params]),
        )
        counts = self._windows.counts([rows[line] for line in lines])
        logits[lines] = apply_penalties(logits[lines], counts, strengths)

    def _params(self, occupant: _Occupant, output_index: int) -> DrawParams | None:
        params = occupant.params
        temperature = usable_temperature(params.temperature)
        if temperature == 0:
            return None
        return DrawParams(
            temperature=temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            uniform=uniform(occupant.seed, output_index),
        )
