"""Models of the right shapes with random weights, made on the device: no file is read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from luce.engine.device import Device
from luce.engine.engine import Blueprint, Engine
from luce.engine.fp8_weights import Fp8Matrix, StoredPart
from luce.engine.native.tiles import StoredMatrix
from luce.engine.options import EngineOptions
from luce.engine.quant_planes import QuantPlanes, empty_planes, repack
from luce.kv.spec import blocks_for
from luce.loaders.fp8_names import BLOCK
from luce.loaders.ggml_types import TYPES_BY_NAME
from luce.loaders.hparams import HParams
from luce.sizing.model_sizes import Sizing
from luce.testing.quant_blocks import random_blocks

CHUNK = 2048
"""Most prompt tokens of a step."""
_RUN_ELEMENTS = 1 << 25
Size = tuple[int, int, int, int, int, bool]

# hidden, intermediate, layers, heads, KV heads, tied output: Qwen3's.
QWEN3: dict[str, Size] = {
    "tiny": (256, 512, 2, 4, 2, True),
    "0.6B": (1024, 3072, 28, 16, 8, True),
    "8B": (4096, 12288, 36, 32, 8, False),
    "32B": (5120, 25600, 64, 64, 8, False),
}


def hparams_of(size: str, context_length: int = 40960) -> HParams:
    hidden, intermediate, layers, heads, kv_heads, tied = QWEN3[size]
    return HParams(
        architecture="qwen3",
        vocab_size=1024 if size == "tiny" else 151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        rope_scaling=None,
        rope_layout="half",
        context_length=context_length,
        tie_word_embeddings=tied,
        attention_bias=False,
        qk_norm=True,
    )


class RandomParameters:
    """`models.base.Parameters` of normal numbers of the usual spread, the same for one seed.

    Attributes:
        step_bytes: memory of all matrices, which a step reads once.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int = 0) -> None:
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)
        self.step_bytes = 0

    def _normal(self, *shape: int, spread: float) -> torch.Tensor:
        out = torch.empty(*shape, dtype=self._dtype, device=self._device)
        return out.normal_(0.0, spread, generator=self._generator)

    def matrix(self, *parts: tuple[str, tuple[int, int]]) -> torch.Tensor:
        rows, columns = sum(shape[0] for _, shape in parts), parts[0][1][1]
        out = self._normal(rows, columns, spread=columns**-0.5)
        self.step_bytes += out.nbytes
        return out

    def quantised(self, *parts: tuple[str, tuple[int, int]]) -> list[QuantPlanes] | None:
        del parts
        return None

    def fp8(self, *parts: tuple[str, tuple[int, int]]) -> list[StoredPart] | None:
        del parts
        return None

    def stored(self, *parts: tuple[str, tuple[int, int]]) -> list[StoredMatrix]:
        """Nothing that a host could compute with as it is."""
        nothing = np.empty(0, np.uint8)
        return [StoredMatrix("random", shape, nothing) for _, shape in parts]

    def stored_experts(self, prefix: str, shape: tuple[int, int, int]) -> list[StoredMatrix] | None:
        del prefix, shape
        return None

    def floats(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        del name
        return self._normal(*shape, spread=0.1).float()

    def experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        del prefix
        count, size, hidden = shape
        gate_up = self._normal(count, 2 * size, hidden, spread=hidden**-0.5)
        return gate_up, self._normal(count, hidden, size, spread=size**-0.5)

    def quantised_experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[QuantPlanes, QuantPlanes] | None:
        del prefix, shape
        return None

    def fp8_experts(
        self, prefix: str, shape: tuple[int, int, int]
    ) -> tuple[Fp8Matrix, Fp8Matrix] | None:
        del prefix, shape
        return None

    def finish(self) -> None:
        """Everything is there at once."""

    def vector(self, *parts: tuple[str, tuple[int]]) -> torch.Tensor:
        return self._normal(sum(shape[0] for _, shape in parts), spread=0.1).add_(1.0)

    def table(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        del name
        return self._normal(*shape, spread=shape[1] ** -0.5)

    def optional_vector(self, name: str, shape: tuple[int]) -> torch.Tensor | None:
        del name, shape
        return None


_MIDDLES = {"Q4_K": 7.5, "Q5_K": 15.5}
"""The mean code of types whose blocks begin with a scale and an offset's scale."""


class QuantisedParameters(RandomParameters):
    """The same with matrices of random blocks of a type; the output matrix is Q6_K beside Q4_K."""

    def __init__(self, type_name: str, device: torch.device, seed: int = 0) -> None:
        super().__init__(torch.bfloat16, device, seed)
        self._type = type_name

    def quantised(self, *parts: tuple[str, tuple[int, int]]) -> list[QuantPlanes] | None:
        rows, columns = sum(shape[0] for _, shape in parts), parts[0][1][1]
        name = parts[0][0]
        kind = "Q6_K" if name.startswith("lm_head") and self._type == "Q4_K" else self._type
        planes = self._planes(kind, rows, columns)
        if not name.startswith("embed"):
            self.step_bytes += planes.nbytes
        return [planes]

    def _planes(self, kind: str, rows: int, columns: int) -> QuantPlanes:
        planes = empty_planes(kind, rows, columns, self._device)
        step = max(1, _RUN_ELEMENTS // columns)
        for start in range(0, rows, step):
            count = min(step, rows - start)
            raw = random_blocks(kind, count, columns, self._generator)
            _centre(kind, raw)
            planes.fill(start, repack(kind, raw, count, columns))
        return planes


def _centre(kind: str, raw: torch.Tensor) -> None:
    """Have a mean of zero: else all rows of a batch grow alike, and choose the same experts."""
    if kind in _MIDDLES:
        halves = raw.view(torch.float16).view(-1, TYPES_BY_NAME[kind].block_bytes // 2)
        halves[:, 1] = halves[:, 0] * _MIDDLES[kind]


def _is_fp8(part: tuple[str, tuple[int, int]]) -> bool:
    """As published files have it: projections, but not those of a few rows."""
    name, _ = part
    return "_proj" in name and not name.endswith(("in_proj_a.weight", "in_proj_b.weight"))


class Fp8Parameters(RandomParameters):
    """The same with projections of e4m3 numbers; embedding and output matrix are plain.

    Args:
        is_block: a scale for 128x128 numbers, else one a row.
    """

    def __init__(self, device: torch.device, seed: int = 0, *, is_block: bool = True) -> None:
        super().__init__(torch.bfloat16, device, seed)
        self._is_block = is_block

    def fp8(self, *parts: tuple[str, tuple[int, int]]) -> list[StoredPart] | None:
        if not any(map(_is_fp8, parts)):
            return None
        found: list[StoredPart] = []
        for stays, group in groupby(parts, key=_is_fp8):
            run = list(group)
            if stays:
                found.append(self._fp8(sum(shape[0] for _, shape in run), run[0][1][1]))
                self.step_bytes += found[-1].nbytes
            else:
                found.append(self.matrix(*run))
        return found

    def _fp8(self, rows: int, columns: int, band: int | None = None) -> Fp8Matrix:
        codes = torch.empty(rows, columns, dtype=torch.uint8, device=self._device)
        step = max(1, _RUN_ELEMENTS // columns)
        for start in range(0, rows, step):
            part = self._normal(min(step, rows - start), columns, spread=32.0)
            codes[start : start + step] = part.to(torch.float8_e4m3fn).view(torch.uint8)
        band = rows if band is None else band
        lines = rows // band * -(-band // BLOCK)
        shape = (lines, -(-columns // BLOCK)) if self._is_block else (rows, 1)
        scales = torch.full(shape, columns**-0.5 / 32.0, device=self._device)
        return Fp8Matrix(codes, scales, self._is_block, band)


@dataclass(frozen=True, slots=True)
class Storage:
    """How weights and cache are stored.

    Attributes:
        weights: "bf16", "FP8" (a scale a block), "FP8row" (one a row) or a GGUF type.
        cache: type of keys and values, "auto" = bfloat16.
    """

    weights: str = "bf16"
    cache: str = "auto"


BFLOAT16 = Storage()


def random_engine(
    size: str,
    device: Device,
    rows: int,
    max_ctx: int,
    pool_tokens: int,
    storage: Storage = BFLOAT16,
) -> tuple[Engine, int]:
    """An engine of a shape that computes in bfloat16, its KV pool as large as asked for.

    Returns:
        It, not yet warmed up, and the bytes of its matrices.
    """
    dtype = torch.bfloat16
    options = EngineOptions(
        path=None,  # type: ignore[arg-type]
        device=device.name,
        max_concurrency=rows,
        max_ctx=max_ctx,
        kv_pool_tokens=pool_tokens,
        chunk=CHUNK,
        cache_type_k=storage.cache,
        cache_type_v=storage.cache,
    )
    blocks = blocks_for(pool_tokens, options.block_tokens)
    sizing = Sizing(max_ctx, blocks, weights_bytes=0, kv_bytes=0, scratch_bytes=0)
    blueprint = Blueprint("qwen3", hparams_of(size), options, device, dtype, sizing)
    parameters = RandomParameters(dtype, device.torch)
    if storage.weights.startswith("FP8"):
        parameters = Fp8Parameters(device.torch, is_block=storage.weights == "FP8")
    elif storage.weights != "bf16":
        parameters = QuantisedParameters(storage.weights, device.torch)
    with torch.inference_mode():
        return Engine(blueprint, parameters, lambda *_: None), parameters.step_bytes
