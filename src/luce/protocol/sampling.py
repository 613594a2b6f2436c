"""How one sequence is sampled. Plain dataclass: the engine reads it and knows no msgspec."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one sequence; validated by the listener, immutable afterwards.

    The chain is: repetition penalty (once per distinct token of the window) → frequency and
    presence penalties → logit bias → greedy if `temperature` is 0, else top-k → temperature
    softmax → min-p → top-p → draw.
    """

    max_tokens: int
    """Most tokens to generate (> 0). The worker lowers it to the room its context leaves."""
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    """1 is off."""
    min_p: float = 0.0
    """0 is off; else drops tokens less likely than `min_p` times the likeliest."""
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    rep_window: int = 256
    """How many of the last tokens (prompt and output) the three penalties look at."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    """Token id → value added to its logit."""
    seed: int | None = None
    """0 is a seed; None draws one from the system's entropy."""
    stop_token_ids: tuple[int, ...] = ()
    """Any of these ends the sequence and is not part of the text."""
