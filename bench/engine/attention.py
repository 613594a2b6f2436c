"""Decode attention alone: microseconds a layer, and its share of the copy rate.

    PYTHONPATH=src:. python -m bench.engine.attention [--ways cuda,triton] [--cases 64x1044,mix]

Shapes of 8B, 0.6B, 27B and 35B-A3B, even contexts, and mixes of 100 to 2,000 tokens. Each case runs
over caches of several layers in one graph, so that nothing is read from the processor's cache; each
way is held against the reference first.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from bench.engine.gpu import ceilings, graphed, timed

from luce.engine.ops.attention import AttentionBatch, AttentionTensors, HeadShape
from luce.engine.ops.cuda import decode_attention as cuda
from luce.engine.ops.decode_pieces import pieces_of
from luce.engine.ops.ref.attention import ReferenceAttention
from luce.engine.ops.triton.paged_attention_decode import (
    DecodeAttention,
    DecodeScratch,
    decode_attention,
)

BLOCK, MAX_CTX = 16, 8448
SHAPES = {
    "8B": HeadShape(32, 8, 128),
    "0.6B": HeadShape(16, 8, 128),
    "27B": HeadShape(24, 4, 256),
    "35B-A3B": HeadShape(16, 2, 256),
}
WAYS: dict[str, DecodeAttention] = {
    "cuda": cuda.decode_attention,
    "triton": decode_attention,
}
ENOUGH = 1 << 28
"""Bytes of all layers' keys and values, several times the processor's cache."""
CHECKED = 4
"""Sequences held against the reference."""


@dataclass(frozen=True)
class Case:
    """Contexts of a batch."""

    name: str
    lens: list[int]

    @classmethod
    def parse(cls, text: str) -> Case:
        """ "64x1044", or "mix256": so many at random."""
        if text.startswith("mix"):
            generator = torch.Generator().manual_seed(7)
            lens = torch.randint(100, 2001, (int(text[3:]),), generator=generator)
            return cls(text, lens.tolist())
        rows, context = text.split("x")
        return cls(text, [int(context)] * int(rows))


class Batch:
    """A case's tensors for a geometry."""

    def __init__(self, heads: HeadShape, case: Case, device: torch.device) -> None:
        self.heads, self.lens = heads, case.lens
        dim = heads.head_dim
        self.layer_bytes = sum(case.lens) * heads.num_kv_heads * dim * 4
        layers = min(120, max(2, ENOUGH // self.layer_bytes))
        counts = [-(-length // BLOCK) for length in case.lens]
        ids = torch.split(torch.randperm(sum(counts)) + 1, counts)
        self.tables = [tuple(each.tolist()) for each in ids]
        shape = (sum(counts) + 1, 2, heads.num_kv_heads, BLOCK, dim)
        self.caches = [
            torch.randn(shape, device=device, dtype=torch.bfloat16).permute(0, 3, 1, 2, 4)
            for _ in range(layers)
        ]
        rows = len(case.lens)
        width = heads.num_heads + 2 * heads.num_kv_heads
        self.qkv = torch.randn(rows, width, dim, device=device).bfloat16()
        self.out = self.qkv.new_empty(rows, heads.num_heads * dim)
        self.scratch = DecodeScratch.make(heads, rows, MAX_CTX, self.qkv.device)
        self.tensors = self._tensors()

    def _tensors(self) -> AttentionTensors:
        rows = len(self.lens)
        tables = torch.zeros(rows, MAX_CTX // BLOCK, dtype=torch.int32)
        for line, table in zip(tables, self.tables, strict=True):
            line[: len(table)] = torch.tensor(table)
        device = self.qkv.device
        numbers = torch.arange(rows + 1, dtype=torch.int32, device=device)
        lens = torch.tensor(self.lens, dtype=torch.int32, device=device)
        pieces = torch.tensor(pieces_of(self.lens), dtype=torch.int32, device=device)
        order = lens.argsort(descending=True, stable=True).int()
        return AttentionTensors(
            block_tables=tables.to(device),
            rows=numbers[:-1],
            context_lens=lens,
            query_starts=numbers,
            num_decode=rows,
            max_queries=0,
            order=torch.stack((order, order, lens[order])),
            pieces=pieces,
        )

    def run(self, way: str) -> None:
        """All layers once."""
        for cache in self.caches:
            WAYS[way](self.qkv, cache, self.tensors, self.heads, self.scratch, self.out)

    def error(self, way: str) -> float:
        """Of the last layer's results, of the reference's norm; the worst of some sequences."""
        self.out.fill_(torch.nan)
        self.run(way)
        errors = []
        for row in range(0, len(self.lens), -(-len(self.lens) // CHECKED)):
            batch = AttentionBatch((0, 1), (self.lens[row],), (self.tables[row],), BLOCK)
            step = ReferenceAttention(self.heads).prepare(batch)
            expected = step(self.qkv[row : row + 1], self.caches[-1]).float()
            found = self.out[row : row + 1].float()
            errors.append((found - expected).norm() / expected.norm())
        return float(torch.stack(errors).max())


def measure(size: str, case: Case, ways: list[str], copy: float) -> None:
    """Print a line for each way."""
    batch = Batch(SHAPES[size], case, torch.device("cuda"))
    for way in ways:
        error = batch.error(way)
        if not error < 1e-2:
            print(f"{size:<8}{case.name:<10}{way:<8} is wrong: {error:.1e}", flush=True)
            continue
        seconds = timed(graphed(lambda way=way: batch.run(way))) / len(batch.caches)  # type: ignore[misc]
        print(
            f"{size:<8}{case.name:<10}{way:<8}{seconds * 1e6:8.1f} us a layer "
            f"{batch.layer_bytes / seconds / copy:6.1%} of the copy rate",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", default="cuda,triton")
    parser.add_argument("--sizes", default=",".join(SHAPES))
    parser.add_argument(
        "--cases", default="1x148,16x148,64x148,256x148,16x1044,64x1044,256x1044,mix64,mix256"
    )
    options = parser.parse_args()
    copy, _ = ceilings()
    print(f"copy {copy / 1e12:.2f} TB/s")
    with torch.inference_mode():
        for size in options.sizes.split(","):
            for case in options.cases.split(","):
                measure(size, Case.parse(case), options.ways.split(","), copy)


if __name__ == "__main__":
    main()
