"""One product after another, for a profiler; by a kernel of CUDA C++ if one is named.

python bench/engine/quant_once.py [--split | --whole] TYPE ROWS...
"""

from __future__ import annotations

import sys

import torch
from bench.engine.quant import LAYER, Weights

from luce.engine.ops.cuda.quant_products import Kernel, QuantProducts
from luce.engine.ops.triton.quant_linear import TritonQuantLinear


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    named = [Kernel(word[2:]) for word in sys.argv[1:] if word.startswith("--")]
    weights = Weights(cold=False)
    rows, columns = LAYER["gate_up"]
    planes = weights.of(words[0], "gate_up")
    assert planes[0].rows == rows
    mma = QuantProducts({64: named[0]}) if named else None
    linear = TritonQuantLinear(planes, None, mma=mma)
    for count in map(int, words[1:]):
        x = torch.randn(count, columns, device="cuda", dtype=torch.bfloat16)
        linear(x)
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
