"""Models of the right shapes with random weights, made on the device: no file is read."""

from __future__ import annotations

import torch

from luce.engine.device import Device
from luce.engine.engine import Blueprint, Engine
from luce.engine.options import EngineOptions
from luce.engine.sizing import Sizing
from luce.kv.spec import blocks_for
from luce.loaders.hparams import HParams

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
    """`models.base.Parameters` of normal numbers of the usual spread, the same for one seed."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int = 0) -> None:
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def _normal(self, *shape: int, spread: float) -> torch.Tensor:
        out = torch.empty(*shape, dtype=self._dtype, device=self._device)
        return out.normal_(0.0, spread, generator=self._generator)

    def matrix(self, *parts: tuple[str, tuple[int, int]]) -> torch.Tensor:
        rows, columns = sum(shape[0] for _, shape in parts), parts[0][1][1]
        return self._normal(rows, columns, spread=columns**-0.5)

    def vector(self, *parts: tuple[str, tuple[int]]) -> torch.Tensor:
        return self._normal(sum(shape[0] for _, shape in parts), spread=0.1).add_(1.0)

    def table(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        del name
        return self._normal(*shape, spread=shape[1] ** -0.5)

    def optional_vector(self, name: str, shape: tuple[int]) -> torch.Tensor | None:
        del name, shape
        return None


def random_engine(
    size: str, device: Device, rows: int, max_ctx: int, pool_tokens: int, chunk: int = 2048
) -> Engine:
    """A bfloat16 engine of a shape, its KV pool as large as asked for; not yet warmed up."""
    dtype = torch.bfloat16
    options = EngineOptions(
        path=None,  # type: ignore[arg-type]
        device=device.name,
        max_concurrency=rows,
        max_ctx=max_ctx,
        kv_pool_tokens=pool_tokens,
        chunk=chunk,
    )
    blocks = blocks_for(pool_tokens, options.block_tokens)
    sizing = Sizing(max_ctx, blocks, weights_bytes=0, kv_bytes=0, scratch_bytes=0)
    blueprint = Blueprint("qwen3", hparams_of(size), options, device, dtype, sizing)
    with torch.inference_mode():
        return Engine(blueprint, RandomParameters(dtype, device.torch), lambda *_: None)
