"""x as `quant_split` takes it: in half precision, scaled, in the order of its products."""

from __future__ import annotations

import functools
import logging
import struct
from dataclasses import dataclass

import torch

from luce.engine.device_kernel import DeviceKernel, KernelLaunch
from luce.engine.ops.cuda.sources import compiled_kernel
from luce.engine.ops.projection import NormWeight
from luce.loaders.quant_formats import BLOCK, GROUP

_log = logging.getLogger(__name__)

ROWS_FILE = "quant_staged_rows.cuh"
_WARPS = 4
_TRIAL_ERROR = 2e-3
_TRIAL_ROWS = 16
_NORM_WARPS = 16
_MOST_UNITS = 4
"""Of 256 columns, of a warp of the norm: they are in its registers."""
TOKEN_BYTES = 2 * BLOCK + 4 + 4 * BLOCK // GROUP
"""Of 256 columns of a row."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """x [T, K] staged.

    Attributes:
        image: int8 [K / 256, 8 * token_tiles * TOKEN_BYTES], as `quant_staged_rows.cuh` has it.
        tokens: T.
        token_tiles: of 8 rows that there is room for.
    """

    image: torch.Tensor
    tokens: int
    token_tiles: int

    def __len__(self) -> int:
        return self.tokens


Rows = torch.Tensor | StagedRows
"""x as it is, or staged."""


@functools.cache
def _compiled(
    name: str, token_tiles: int, warps: int, units: int, _device: torch.device
) -> DeviceKernel:
    """It is loaded on one device."""
    files = (ROWS_FILE, "quant_stage.cu")
    constants = {"TOKEN_TILES": token_tiles, "WARPS": warps, "UNITS": units}
    return compiled_kernel(name, files, constants, KernelLaunch(4 * warps, is_early=True))


def _room(x: torch.Tensor, token_tiles: int) -> StagedRows:
    width = 8 * token_tiles * TOKEN_BYTES
    image = torch.empty(x.shape[1] // BLOCK, width, dtype=torch.int8, device=x.device)
    return StagedRows(image, len(x), token_tiles)


def stage(x: torch.Tensor, token_tiles: int) -> StagedRows:
    """Stage bfloat16 x [T, K], K in blocks of 256; rows begin at multiples of 16 bytes.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    rows, units = _room(x, token_tiles), x.shape[1] // BLOCK
    _compiled("quant_stage", token_tiles, _WARPS, 1, x.device)(
        (-(-len(x) * units // _WARPS), 1, 1),
        (32 * _WARPS, 1, 1),
        [x, rows.image, len(x), units, x.stride(0)],
    )
    return rows


def takes_norm(x: torch.Tensor, norm: NormWeight) -> bool:
    """Whether `stage_normed` takes such rows, and has passed its trial."""
    weight = norm.weight
    is_narrow = x.shape[1] <= _NORM_WARPS * _MOST_UNITS * BLOCK
    is_made_for = is_narrow and weight.dtype == x.dtype and weight.data_ptr() % 16 == 0
    return is_made_for and _norm_serves(x.device)


@functools.cache
def _norm_serves(device: torch.device) -> bool:
    try:
        error = _norm_error(device)
    except (RuntimeError, AttributeError) as fault:
        _log.warning("norms do not stage rows: %s", fault)
        return False
    if not error < _TRIAL_ERROR:
        _log.warning("norms do not stage rows: they differ by %.1e of the norm", error)
    return error < _TRIAL_ERROR


def _norm_error(device: torch.device) -> float:
    """Of the norm of what a trial should give."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(_TRIAL_ROWS, 5 * BLOCK, generator=generator).bfloat16()
    weight = torch.randn(5 * BLOCK, generator=generator).bfloat16()
    norm = NormWeight(weight.to(device), 1e-6)
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + norm.eps)
    wanted = _values(stage(((x.float() * scale).bfloat16() * weight).to(device), 2))
    found = _values(stage_normed(x.to(device), norm, 2))
    return float((found - wanted).norm() / wanted.norm())


def _values(rows: StagedRows) -> torch.Tensor:
    """What all rows of two tiles stand for, in their own order."""
    numbers = 2 * BLOCK * _TRIAL_ROWS
    scaled = rows.image[:, :numbers].contiguous().view(torch.float16).float()
    back = rows.image[:, numbers : numbers + 4 * _TRIAL_ROWS].contiguous().view(torch.float32)
    return scaled.view(len(back), 8, 2, 8, 32) * back.view(len(back), 1, 2, 8, 1)


def stage_normed(x: torch.Tensor, norm: NormWeight, token_tiles: int) -> StagedRows:
    """Stage norm(x), for x as in `stage`.

    Raises:
        RuntimeError: the device does not take the kernel.
    """
    rows, units = _room(x, token_tiles), x.shape[1] // BLOCK
    warps = min(_NORM_WARPS, units)
    kernel = _compiled("quant_stage_norm", token_tiles, warps, -(-units // warps), x.device)
    (eps_bits,) = struct.unpack("i", struct.pack("f", norm.eps))
    kernel(
        (len(x), 1, 1),
        (32 * warps, 1, 1),
        [x, norm.weight, rows.image, units, x.stride(0), eps_bits],
    )
    return rows
