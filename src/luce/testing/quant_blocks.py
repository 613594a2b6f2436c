"""Random stored blocks of every quantised type whose values are of a size weights have."""

from __future__ import annotations

import torch

from luce.loaders.ggml_types import TYPES_BY_NAME

# Where the float16 scales of a block lie; all but the last one of two are d, that one is an
# offset.
_HALVES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,),
    "IQ4_XS": (0,), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2),
    "Q6_K": (208,),
}  # fmt: skip


def random_blocks(type_name: str, rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:  # fmt: skip  # noqa: E501
    """Flat uint8 on the generator's device: `rows` stored rows of `columns` elements."""
    kind = TYPES_BY_NAME[type_name]
    device = generator.device
    shape = (rows * columns // kind.block_elements, kind.block_bytes)
    raw = torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator)
    for start in _HALVES.get(type_name, ()):
        scale = torch.rand(len(raw), 1, device=device, generator=generator) * 0.01 + 0.002
        raw[:, start : start + 2] = scale.half().view(torch.uint8)
    if type_name == "MXFP4":
        raw[:, 0] = 118 + raw[:, 0] % 8
    return raw.flatten()
