"""Penalties on tokens a sequence has seen lately, and the windows they look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PenaltyStrengths:
    """The three penalties of n rows, each f32 [n, 1]."""

    repetition: torch.Tensor
    frequency: torch.Tensor
    presence: torch.Tensor


def apply_penalties(
    logits: torch.Tensor, counts: torch.Tensor, strengths: PenaltyStrengths
) -> torch.Tensor:
    """Change what was seen: repetition first (once per distinct token), then frequency, presence.

    Args:
        logits: f32 [n, V].
        counts: f32 [n, V]: how often each token is in the row's window.

    Returns:
        f32 [n, V]. A positive logit of a seen token is divided by the repetition penalty, a
        negative one multiplied: a penalty above 1 lowers it, one below 1 raises it.
    """
    seen = counts > 0
    repeated = torch.where(logits > 0, logits / strengths.repetition, logits * strengths.repetition)
    lowered = torch.where(seen, repeated, logits)
    return lowered - counts * strengths.frequency - seen * strengths.presence


class TokenWindows:
    """The last tokens of every row that has penalties, as rings; order does not matter to them.

    Args:
        max_rows: rows.
        vocab_size: V; the id V marks an empty place.
        device: where the rings are.
    """

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._sizes = [0] * max_rows
        self._next = [0] * max_rows
        self._rings = torch.full((max_rows, 1), vocab_size, dtype=torch.int64, device=device)

    def start(self, row: int, history: Sequence[int], size: int) -> None:
        """Give a row a window of `size` tokens that holds the end of `history`."""
        self._reserve(size)
        recent = torch.tensor(history[-size:] if size else (), dtype=torch.int64)
        self._rings[row].fill_(self._vocab_size)
        self._rings[row, : len(recent)] = recent.to(self._rings.device)
        self._sizes[row] = size
        self._next[row] = len(recent) % size if size else 0

    def append(self, rows: Sequence[int], token_ids: torch.Tensor) -> None:
        """Add one token to each of these rows; the oldest leaves.

        Args:
            rows: rows with a window of at least one token.
            token_ids: i64 [n].
        """
        places = [self._next[row] for row in rows]
        device = self._rings.device
        self._rings[torch.tensor(rows, device=device), torch.tensor(places, device=device)] = (
            token_ids
        )
        for row in rows:
            self._next[row] = (self._next[row] + 1) % self._sizes[row]

    def counts(self, rows: Sequence[int]) -> torch.Tensor:
        """How often each token is in each row's window: f32 [n, V]."""
        device = self._rings.device
        tokens = self._rings[torch.tensor(rows, device=device)]
        counts = torch.zeros(len(rows), self._vocab_size + 1, device=device)
        counts.scatter_add_(1, tokens, torch.ones((), device=device).expand(tokens.shape))
        return counts[:, : self._vocab_size]

    def _reserve(self, size: int) -> None:
        rows, capacity = self._rings.shape
        if size <= capacity:
            return
        wider = self._rings.new_full((rows, max(size, 2 * capacity)), self._vocab_size)
        wider[:, :capacity] = self._rings
        self._rings = wider
