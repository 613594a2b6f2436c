"""What the kernel that begins a decode step looks up: tokens' embeddings and positions' angles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from luce.engine.ops.step_tables import StepTables
from luce.engine.ops.triton.numeric import power_of_two
from luce.engine.ops.triton.quant_embedding import (
    COLUMNS,
    decode_eights,
    load_eights,
    table_facts,
    table_pointers,
)
from luce.engine.quant_planes import QuantPlanes

_NO_EMBEDDING = {
    "LOOKUP": "", "num_columns": 8, "EIGHTS": 1, "CODES": 0, "HIGH": 0, "ZERO": 0, "TABLE": 0,
    "SIGNED": False, "SCALE": "",
}  # fmt: skip


@triton.jit
def look_up(
    hidden, token, part, table, two_ptr, high_ptr, scales_ptr, blocks_ptr,
    num_columns: tl.constexpr, EIGHTS: tl.constexpr, LOOKUP: tl.constexpr,
    CODES: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, TABLE: tl.constexpr,
    SIGNED: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Some columns of a token's row of the embedding."""
    eights = (part * EIGHTS + tl.arange(0, EIGHTS))[:, None]
    columns = eights * 8 + tl.arange(0, 8)[None, :]
    inside = columns < num_columns
    if LOOKUP == "plain":
        row = table + token.to(tl.int64) * num_columns
        values = tl.load(row + columns, mask=inside, other=0.0)
    else:
        stored = load_eights(
            table, two_ptr, high_ptr, scales_ptr, blocks_ptr, token, eights, num_columns // 32,
            CODES, HIGH, SCALE,
        )  # fmt: skip
        values = decode_eights(stored, eights, CODES, HIGH, ZERO, TABLE, SIGNED, SCALE)
    tl.store(hidden + columns, values.to(hidden.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class LaneLookup:
    """Where angles and embeddings come from and go, as the kernel's arguments.

    Attributes:
        rotary: f32 [n, 1, R/2, 2], to be written; None: not looked up.
        hidden: [n, hidden], likewise.
        parts: programs of a lane that look embeddings up.
        pointers: its tensors.
        constants: its constants.
    """

    rotary: torch.Tensor | None
    hidden: torch.Tensor | None
    parts: int
    pointers: tuple[torch.Tensor, ...]
    constants: dict[str, Any]

    @classmethod
    def of(cls, tables: StepTables | None, lanes: torch.Tensor) -> LaneLookup:
        """For so many lanes."""
        if tables is None:
            constants = {"R": 0, "BLOCK_R": 1, **_NO_EMBEDDING}
            return cls(None, None, 0, (lanes,) * 8, constants)
        count, angles = lanes.shape[0], tables.angles
        numbers = angles.shape[1] * 2
        constants = {"R": numbers, "BLOCK_R": power_of_two(numbers), **_NO_EMBEDDING}
        rotary = angles.new_empty(count, 1, *angles.shape[1:])
        if tables.embedding is None:
            return cls(rotary, None, 0, (angles, rotary, *(lanes,) * 6), constants)
        sources, columns, facts = _sources(tables.embedding)
        block = min(COLUMNS, power_of_two(columns, 8))
        constants |= {"num_columns": columns, "EIGHTS": block // 8}
        hidden = angles.new_empty(count, columns, dtype=tables.dtype)
        pointers = (angles, rotary, hidden, *sources)
        return cls(rotary, hidden, triton.cdiv(columns, block), pointers, constants | facts)


def _sources(
    embedding: torch.Tensor | QuantPlanes,
) -> tuple[tuple[torch.Tensor, ...], int, dict[str, Any]]:
    """Its tensors, its columns, and what is known of it."""
    if isinstance(embedding, torch.Tensor):
        return (embedding,) * 5, embedding.shape[1], {"LOOKUP": "plain"}
    facts = {"LOOKUP": "quantised", **table_facts(embedding)}
    return table_pointers(embedding), embedding.columns, facts
