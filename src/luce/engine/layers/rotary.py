"""Rotary position embedding: frequencies, their scaling, and the table of angles."""

from __future__ import annotations

import math

import torch

from luce.errors import ModelFileError
from luce.loaders.hparams import HParams, RopeScaling


class RotaryTable:
    """Cosine and sine of every position.

    Args:
        hparams: head dimension, base and scaling.
        max_positions: positions 0 .. max_positions-1 can be looked up.
        divisors: f32 [D/2] that divide the frequencies (GGUF's `rope_freqs`), or None.
        device: where the table is.

    Attributes:
        table: f32 [positions, R/2, 2].

    Raises:
        ModelFileError: base and scaling give no finite frequencies.
    """

    def __init__(
        self,
        hparams: HParams,
        max_positions: int,
        divisors: torch.Tensor | None,
        device: torch.device,
    ) -> None:
        frequencies = _checked_frequencies(hparams, divisors)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float64), frequencies)
        scale = attention_factor(hparams.rope_scaling)
        table = torch.stack((angles.cos(), angles.sin()), dim=-1).mul_(scale)
        self.table = table.to(device=device, dtype=torch.float32)

    def lookup(self, positions: torch.Tensor) -> torch.Tensor:
        """i32 [T] → f32 [T, 1, D/2, 2]: cosine and sine."""
        return self.table.index_select(0, positions).unsqueeze(1)

    @property
    def nbytes(self) -> int:
        return self.table.nbytes


def _checked_frequencies(hparams: HParams, divisors: torch.Tensor | None) -> torch.Tensor:
    # These numbers come from the file; not every combination of legal ones makes sense.
    reason = "they are not finite numbers"
    try:
        frequencies = inverse_frequencies(hparams)
        if divisors is not None:
            frequencies = frequencies / divisors.double().cpu()
        if bool(frequencies.isfinite().all()):
            return frequencies
    except (ArithmeticError, ValueError) as error:
        reason = str(error)
    raise ModelFileError(
        f"the model's rotary frequencies cannot be computed from base {hparams.rope_theta:g} and "
        f"scaling {hparams.rope_scaling}: {reason}"
    )


def inverse_frequencies(hparams: HParams) -> torch.Tensor:
    """Radians a position of each rotary pair, scaled: float64 [D/2]."""
    size = hparams.rotated_dim
    exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
    plain = hparams.rope_theta**-exponents
    scaling = hparams.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(plain, scaling)
    return _yarn(plain, hparams, scaling)


def attention_factor(scaling: RopeScaling | None) -> float:
    """What cosine and sine are multiplied by.

    Source: YaRN, section 3.4 (0.1 ln s + 1), unless the checkpoint names its own.
    """
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1.0 else 1.0


def _llama3(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Long wavelengths are divided by the factor, short ones kept, those between blended.

    Source: the Llama 3.1 reference implementation, apply_scaling.
    """
    wavelengths = 2 * math.pi / plain
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = ((scaling.original_context / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (keep + (1.0 - keep) / scaling.factor)


def _yarn(plain: torch.Tensor, hparams: HParams, scaling: RopeScaling) -> torch.Tensor:
    """Pairs that turn more than `beta_fast` times in the original context are kept, those that
    turn less than `beta_slow` times divided by the factor, those between blended.

    Source: YaRN, section 3.2 (NTK by parts); borders rounded outward as in its reference code.
    """

    def pair_turning(times: float) -> float:
        turns = scaling.original_context / (times * 2 * math.pi)
        return hparams.rotated_dim * math.log(turns) / (2 * math.log(hparams.rope_theta))

    low = max(math.floor(pair_turning(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_turning(scaling.beta_slow)), hparams.rotated_dim - 1)
    index = torch.arange(plain.shape[0], dtype=torch.float64)
    divide = ((index - low) / max(high - low, 1e-3)).clamp(0.0, 1.0)
    return plain * (1.0 - divide) + plain / scaling.factor * divide
