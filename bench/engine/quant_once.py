"""One product after another, for a profiler.

python bench/engine/quant_once.py TYPE ROWS...
"""

from __future__ import annotations

import sys

import torch
from bench.engine.quant import LAYER, Weights

from luce.engine.ops.triton.quant_linear import TritonQuantLinear


def main() -> None:
    weights = Weights(cold=False)
    rows, columns = LAYER["gate_up"]
    planes = weights.of(sys.argv[1], "gate_up")
    assert planes[0].rows == rows
    linear = TritonQuantLinear(planes, None)
    for count in map(int, sys.argv[2:]):
        x = torch.randn(count, columns, device="cuda", dtype=torch.bfloat16)
        linear(x)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
