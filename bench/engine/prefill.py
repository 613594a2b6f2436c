"""Parts of a prompt's step on a GPU, each with other cuts: attention and the vendor's products.

    PYTHONPATH=src:. python -m bench.engine.prefill [--parts attention,products,engine]

Each cut of attention is checked against float32 first, whole and in chunks cut elsewhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from bench.engine.gpu import Streams, breakdown, ceilings, graphed, timed
from bench.engine.gpu_sweep import tensors
from bench.engine.shapes import random_engine

from luce.engine.device import open_device
from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.cuda import prefill_attention as cuda
from luce.engine.ops.cuda.prefill_attention import PrefillTiling
from luce.engine.ops.triton import paged_attention_prefill as triton

EIGHT = HeadShape(32, 8, 128)
SHAPES = {64: HeadShape(16, 8, 64), 128: EIGHT, 256: HeadShape(24, 4, 256)}
CUTS = {
    64: [PrefillTiling(128, 2, takes_turns=turns) for turns in (False, True)],
    128: [
        PrefillTiling(128, 3, takes_turns=True),
        PrefillTiling(128, 3, takes_turns=False),
        PrefillTiling(128, 2, takes_turns=True),
    ],
    256: [PrefillTiling(64, 2, takes_turns=turns) for turns in (False, True)],
}
Attention = Callable[[torch.Tensor, torch.Tensor, AttentionTensors, HeadShape, torch.Tensor], None]


def store(heads: HeadShape, tokens: int) -> torch.Tensor:
    """A cache in which slots nobody owns are not numbers."""
    shape = (tokens // 16 + 1, 2, heads.num_kv_heads, 16, heads.head_dim)
    made = torch.randn(shape, device="cuda").bfloat16()
    made[0] = float("nan")
    return made.permute(0, 3, 1, 2, 4)


def expected(
    qkv: torch.Tensor, cache: torch.Tensor, given: AttentionTensors, heads: HeadShape
) -> torch.Tensor:
    """By definition, in float32."""
    out = []
    starts = given.query_starts.tolist()
    for index, length in enumerate(given.context_lens.tolist()):
        blocks = given.block_tables[int(given.rows[index])].long()[: -(-length // 16)]
        both = cache[blocks].flatten(0, 1)[:length].float().repeat_interleave(heads.group, 2)
        q = qkv[starts[index] : starts[index + 1], : heads.num_heads].float()
        count = len(q)
        scores = torch.einsum("qhd,khd->hqk", q, both[:, 0]) / heads.head_dim**0.5
        place = torch.arange(length - count, length, device="cuda")
        hidden = torch.arange(length, device="cuda") > place[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, both[:, 1]).flatten(1))
    return torch.cat(out)


def fault(attention: Attention, heads: HeadShape) -> str:
    """What is wrong with a kernel, or its error."""
    width = heads.num_heads + 2 * heads.num_kv_heads
    worst = 0.0
    for batch, context, queries in ((1, 1, 1), (3, 333, 333), (2, 1000, 130), (1, 2500, 700)):
        cache = store(heads, batch * (context + 16))
        blocks = -(-context // 16)
        given = tensors(batch, blocks * 16, queries)
        ends = [block for row in given.block_tables[:, blocks - 1].tolist() for block in [row]]
        if context % 16:
            cache[ends, context % 16 :] = float("nan")
        given = replace(
            given, context_lens=torch.full_like(given.context_lens, context), num_decode=0,
            max_queries=queries,
        )  # fmt: skip
        qkv = torch.randn(batch * queries, width, heads.head_dim, device="cuda").bfloat16()
        out = torch.full_like(qkv[:, : heads.num_heads].flatten(1), float("nan"))
        attention(qkv, cache, given, heads, out)
        right = expected(qkv, cache, given, heads)
        error = ((out.float() - right).norm() / right.norm()).item()
        worst = max(worst, error)
        if not error < 6e-3:
            return f"wrong at {batch} x {queries} of {context}: {error}"
        again = torch.full_like(out, float("nan"))
        attention(qkv, cache, given, heads, again)
        if not torch.equal(out, again):
            return f"differs from time to time at {batch} x {queries} of {context}"
        if batch == 1 and queries > 1:
            cut = 77
            rest = replace(
                given, query_starts=torch.tensor([0, queries - cut]).int().cuda(),
                max_queries=queries - cut,
            )  # fmt: skip
            tail = torch.full_like(out[cut:], float("nan"))
            attention(qkv[cut:].contiguous(), cache, rest, heads, tail)
            if not torch.equal(tail, out[cut:]):
                return "depends on the cut"
    return f"right, error {worst:.1e}"


def attention_rate(attention: Attention, heads: HeadShape, product: float) -> None:
    """A layer's time, alone and with the products' heat."""
    for queries, context, batch in ((2048, 2048, 1), (2048, 8192, 1), (512, 512, 4)):
        cache, given = store(heads, batch * context), tensors(batch, context, queries)
        width = heads.num_heads + 2 * heads.num_kv_heads
        qkv = torch.randn(batch * queries, width, heads.head_dim, device="cuda").bfloat16()
        out = torch.empty_like(qkv[:, : heads.num_heads].flatten(1))
        work = graphed(partial(attention, qkv, cache, given, heads, out))

        def several(work: Callable[[], None] = work) -> None:
            for _ in range(20):
                work()

        seconds = timed(several, 10) / 20
        flops = 4 * heads.num_heads * heads.head_dim * batch * queries * (context - queries / 2)
        rate = flops / seconds
        print(
            f"    {batch} x {queries} of {context}: {seconds * 1e6:7.1f} us "
            f"{rate / 1e12:5.0f} TFLOP/s {rate / product:6.1%}",
            flush=True,
        )


def attempt(name: str, heads: HeadShape, attention: Attention, product: float) -> None:
    try:
        found = fault(attention, heads)
        print(f"{name}: {found}", flush=True)
        if found.startswith("right") and product:
            attention_rate(attention, heads, product)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:1500]}", flush=True)


def attention_cuts(sizes: list[int], product: float) -> None:
    for size in sizes:
        heads = SHAPES[size]
        for cut in CUTS[size]:
            attempt(str(cut), heads, partial(cuda.prefill_attention, tiling=cut), product)
        attempt(f"triton, heads of {size}", heads, triton.prefill_attention, product)


def products() -> None:
    """Products of 2,048 tokens: layouts, data, and the residual inside."""
    x = torch.randn(2048, 4096, device="cuda").bfloat16()
    normal = (torch.randn(24576, 4096, device="cuda") / 64).bfloat16()
    coarse = ((torch.randn(24576, 4096, device="cuda") * 3).round() / 192).bfloat16()
    whole = torch.empty(2048, 24576, device="cuda").bfloat16()
    residual = torch.randn(2048, 4096, device="cuda").bfloat16()
    square = (torch.randn(4096, 4096, device="cuda") / 64).bfloat16()
    flops = 2 * 2048 * 4096 * 24576

    def runs(weight: torch.Tensor) -> None:
        for first in range(0, 24576, 12288):
            part = whole[:, first : first + 12288]
            torch.mm(x, weight[first : first + 12288].t(), out=part)

    def columns(weight: torch.Tensor) -> None:
        torch.mm(weight, x.t())

    cases: dict[str, tuple[float, Callable[[], object]]] = {}
    for name, weight in (("normal", normal), ("coarse", coarse)):
        cases[f"{name} plain"] = flops, partial(torch.nn.functional.linear, x, weight)
        cases[f"{name} in two"] = flops, partial(runs, weight)
        cases[f"{name} transposed"] = flops, partial(columns, weight)
    cases["output, residual inside"] = (
        flops / 6, partial(torch.addmm, residual, x, square.t(), out=residual)
    )  # fmt: skip
    cases["output"] = flops / 6, partial(torch.nn.functional.linear, x, square)
    for name, (amount, work) in cases.items():

        def several(work: Callable[[], object] = work, amount: float = amount) -> None:
            for _ in range(int(2e13 / amount)):
                work()

        residual.normal_()
        seconds = timed(several, 5) / int(2e13 / amount)
        rate = amount / seconds / 1e12
        print(f"{name:28} {rate:6.0f} TFLOP/s  {seconds * 1e6:7.1f} us", flush=True)


def engine() -> None:
    """Prompts of the 8B shape, whole."""
    made, _ = random_engine("8B", open_device("cuda:0"), 8, 8448, 8 * 8192 + 4096)
    made.warm_up()
    streams = Streams(made)
    streams.spread(8)
    for count, tokens in ((1, 2048), (1, 8192), (8, 2048)):
        seconds = min(streams.prefill(list(range(count)), tokens, 2048) for _ in range(3))
        print(f"8B {count}x{tokens}: {count * tokens / seconds:.0f} tok/s {seconds * 1e3:.1f} ms")
    breakdown("8B 8192", 1, partial(streams.prefill, [0], 8192, 2048))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="attention,products")
    parser.add_argument("--sizes", default="128,256,64", help="of heads")
    options = parser.parse_args()
    parts = options.parts.split(",")
    with torch.inference_mode():
        if "attention" in parts:
            _, product = ceilings()
            print(f"a product of 8192 cubed: {product / 1e12:.0f} TFLOP/s")
            attention_cuts([int(each) for each in options.sizes.split(",")], product)
        if "products" in parts:
            products()
    torch.cuda.empty_cache()
    if "engine" in parts:
        engine()


if __name__ == "__main__":
    main()
