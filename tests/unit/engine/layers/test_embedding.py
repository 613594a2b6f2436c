"""What of an embedding other kernels can read."""

from __future__ import annotations

import torch

from luce.engine.fp8_weights import Fp8Matrix
from luce.engine.layers.embedding import Embedding, Fp8Embedding, QuantEmbedding, lookup_table
from luce.engine.ops.ref import fp8_matmul, quant_matmul
from luce.engine.quant_planes import empty_planes


def test_tables_that_are_read_elsewhere() -> None:
    table = torch.zeros(3, 8)
    assert lookup_table(Embedding(table, torch.float32)) is table
    planes = empty_planes("Q8_0", 3, 32, torch.device("cpu"))
    assert lookup_table(QuantEmbedding(planes, torch.float32, quant_matmul.lookup)) is planes


def test_other_embeddings_look_up_themselves() -> None:
    matrix = Fp8Matrix.__new__(Fp8Matrix)
    assert lookup_table(Fp8Embedding(matrix, torch.float32, fp8_matmul.lookup)) is None
