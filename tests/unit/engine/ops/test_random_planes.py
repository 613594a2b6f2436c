"""Random planes stand for numbers of moderate size, the same each time."""

from __future__ import annotations

import pytest
import torch

from luce.engine.ops.random_planes import random_planes
from luce.engine.ops.ref.quant_matmul import decode
from luce.loaders.quant_formats import QUANT_FORMATS


@pytest.mark.parametrize("kind", sorted(QUANT_FORMATS))
def test_every_format(kind: str) -> None:
    form = QUANT_FORMATS[kind]
    columns = 2 * form.column_multiple
    values, again = (
        decode(random_planes(form, 24, columns, torch.device("cpu"))) for _ in range(2)
    )
    assert values.shape == (24, columns)
    assert values.isfinite().all()
    assert values.float().std() > 0
    assert values.abs().max() < 1e6
    assert values.unique().numel() > 8
    assert torch.equal(values, again)
