"""Tile sizes of the GPU's kernels, each timed over all layers of an 8B shape in one graph.

    PYTHONPATH=src:. python -m bench.engine.gpu_sweep [--parts vector,decode,prefill]

Layers have their own weights and caches, so that nothing is read from the processor's cache.
"""

# What a loop defines is called in the same turn.
# ruff: noqa: B023

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from bench.engine.gpu import ceilings, graphed, timed

from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.triton import linear, paged_attention_decode, paged_attention_prefill
from luce.engine.ops.triton.paged_attention_decode import DecodeScratch, decode_attention
from luce.engine.ops.triton.paged_attention_prefill import prefill_attention

HEADS = HeadShape(32, 8, 128)
LAYERS = 18
# qkv, output, gate and up, down of an 8B model: [out, in].
SHAPES = ((6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288))


def weights() -> list[list[torch.Tensor]]:
    return [
        [torch.randn(shape, device="cuda").bfloat16() * 0.02 for shape in SHAPES]
        for _ in range(LAYERS)
    ]


def share(seconds: float, copy: float) -> str:
    moved = LAYERS * sum(2 * out * size for out, size in SHAPES)
    return f"{seconds * 1e6 / LAYERS:7.1f} us a layer {moved / seconds / copy:6.1%}"


def attempt(name: str, work: Callable[[], object], tell: Callable[[float], str]) -> None:
    try:
        print(f"{name:<44} {tell(timed(graphed(work), 12))}", flush=True)
    except Exception as error:
        print(f"{name:<44} {type(error).__name__}: {str(error).splitlines()[0][:80]}", flush=True)


def vector(copy: float) -> None:
    layers = weights()
    x = [torch.randn(1, size, device="cuda").bfloat16() for _, size in SHAPES]
    norm = NormWeight(torch.ones(4096, device="cuda").bfloat16(), 1e-6)

    def plain() -> None:
        for layer in layers:
            for weight, v in zip(layer, x, strict=True):
                linear.DeviceLinear(weight, None)(v)

    def fused() -> None:
        for qkv, output, gate_up, down in layers:
            linear.DeviceLinear(qkv, None).few_rows(x[0], norm=norm)
            linear.DeviceLinear(output, None)(x[1])
            linear.DeviceLinear(gate_up, None).few_rows(x[2], norm=norm, gated=True)
            linear.DeviceLinear(down, None)(x[3])

    for out, size, warps, ahead in (
        (4, 1024, 4, 0),
        (4, 1024, 4, 1),
        (4, 1024, 4, 2),
        (2, 1024, 4, 2),
        (2, 1024, 4, 4),
        (4, 512, 4, 2),
        (8, 512, 4, 1),
        (2, 2048, 8, 1),
    ):
        linear._BLOCK_OUT, linear._BLOCK_IN, linear._WARPS, linear._AHEAD = out, size, warps, ahead
        name = f"vector {out}x{size} warps {warps} ahead {ahead}"
        attempt(name, plain, lambda s: share(s, copy))
        if out > 1:
            attempt(f"{name} norm, gate", fused, lambda s: share(s, copy))


def caches(tokens: int, layers: int) -> list[torch.Tensor]:
    shape = (tokens // 16 + 1, 2, 8, 16, 128)
    return [
        torch.randn(shape, device="cuda").bfloat16().permute(0, 3, 1, 2, 4) for _ in range(layers)
    ]


def tensors(batch: int, context: int, queries: int) -> AttentionTensors:
    width = context // 16 + 1
    tables = torch.randperm(batch * (context // 16)).view(batch, -1) + 1
    tables = torch.nn.functional.pad(tables, (0, width - tables.shape[1]))
    lens = torch.full((batch,), context)
    starts = torch.arange(batch + 1) * queries
    return AttentionTensors(
        tables.int().cuda(),
        torch.arange(batch).int().cuda(),
        lens.int().cuda(),
        starts.int().cuda(),
        num_decode=batch if queries == 1 else 0,
        max_queries=queries,
    )


def decode(copy: float) -> None:
    module = paged_attention_decode
    for batch, context, layers in (
        (1, 128, 36),
        (1, 1024, 36),
        (16, 1024, 18),
        (256, 1024, 3),
        (256, 160, 8),
    ):
        stores, batch_tensors = caches(batch * context, layers), tensors(batch, context, 1)
        qkv = torch.randn(batch, 48, 128, device="cuda").bfloat16()
        out = torch.empty(batch, 4096, device="cuda").bfloat16()
        moved = layers * batch * context * 8 * 128 * 4
        for chunk, tile, warps, stages in (
            (128, 128, 4, 1),
            (128, 128, 4, 2),
            (128, 64, 4, 2),
            (128, 128, 8, 1),
            (256, 128, 4, 1),
            (256, 128, 4, 2),
        ):
            module.CHUNK_TOKENS, module._TILE_ELEMENTS, module._WARPS, module._STAGES = (
                chunk,
                tile * 128,
                warps,
                stages,
            )
            scratch = DecodeScratch.make(HEADS, batch, 8448, qkv.device)

            def work(scratch: DecodeScratch = scratch) -> None:
                for store in stores:
                    decode_attention(qkv, store, batch_tensors, HEADS, scratch, out)

            attempt(
                f"decode {batch}x{context} chunk {chunk} tile {tile} warps {warps} stages {stages}",
                work,
                lambda s: f"{s * 1e6 / layers:7.1f} us a layer {moved / s / copy:6.1%}",
            )


def prefill(product: float) -> None:
    module = paged_attention_prefill
    for queries, context in ((2048, 2048), (2048, 8192)):
        store, batch_tensors = caches(context, 1)[0], tensors(1, context, queries)
        qkv = torch.randn(queries, 48, 128, device="cuda").bfloat16()
        out = torch.empty(queries, 4096, device="cuda").bfloat16()
        flops = 4 * 4096 * queries * (context - queries / 2)
        for tile, warps, stages in (
            ((128, 64), 4, 3),
            ((128, 64), 8, 3),
            ((128, 128), 8, 2),
            ((64, 64), 4, 2),
            ((128, 32), 4, 4),
        ):
            module._NARROW_TILE, module._WARPS, module._STAGES = tile, warps, stages
            attempt(
                f"prefill {queries} of {context} tile {tile} warps {warps} stages {stages}",
                lambda: prefill_attention(qkv, store, batch_tensors, HEADS, out),
                lambda s: (
                    f"{s * 1e6:7.1f} us {flops / s / 1e12:6.0f} TFLOP/s {flops / s / product:6.1%}"
                ),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="vector,decode,prefill")
    parts = parser.parse_args().parts.split(",")
    copy, product = ceilings()
    print(f"copy {copy / 1e12:.2f} TB/s, product {product / 1e12:.0f} TFLOP/s")
    with torch.inference_mode():
        for name, work, ceiling in (
            ("vector", vector, copy),
            ("decode", decode, copy),
            ("prefill", prefill, product),
        ):
            if name in parts:
                work(ceiling)


if __name__ == "__main__":
    main()
