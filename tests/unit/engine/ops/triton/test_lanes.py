"""The begin of a decode step with what it looks up, and lanes that come by the ring."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from luce.engine.ops.step_tables import StepTables
from luce.engine.ops.triton.lanes import BegunDecode, begin_decode
from luce.engine.ops.triton.quant_embedding import quant_lookup
from luce.engine.quant_planes import repack
from luce.engine.step_ring import StepRing
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.testing.quant_blocks import random_blocks

POSITIONS = 40


def lanes_of(count: int, seed: int = 0) -> np.ndarray:
    """Of rows in an order of their own."""
    numbers = np.random.default_rng(seed)
    lanes = np.zeros((count, 4), dtype=np.int32)
    lanes[:, 0] = numbers.permutation(count)
    lanes[:, 1] = numbers.integers(0, POSITIONS, count)
    lanes[:, 2] = numbers.integers(1, 90, count)
    lanes[:, 3] = numbers.integers(1, 90, count)
    return lanes


def tokens_of(count: int, vocab_size: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    tokens = torch.randint(vocab_size, (count, POSITIONS), generator=generator, dtype=torch.int32)
    return tokens.to(device)


def tables_of(embedding: torch.Tensor, dtype: torch.dtype) -> StepTables:
    angles = torch.randn(POSITIONS, 3, 2, generator=torch.Generator().manual_seed(2))
    return StepTables(angles.to(embedding.device), embedding, dtype)


def begun(lanes: torch.Tensor, tokens: torch.Tensor, *more: object) -> BegunDecode:
    tables = torch.zeros(len(lanes), 5, dtype=torch.int32, device=lanes.device)
    return begin_decode(lanes, tokens, tables, 8, *more)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [24, 1500])
@pytest.mark.parametrize(
    ("stored", "dtype"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float16)],
    ids=["narrow", "wide"],
)
def test_plain_tables(
    device: torch.device, stored: torch.dtype, dtype: torch.dtype, width: int
) -> None:
    embedding = torch.randn(50, width, generator=torch.Generator().manual_seed(1))
    lookup = tables_of(embedding.to(device, stored), dtype)
    lanes, tokens = torch.from_numpy(lanes_of(3)).to(device), tokens_of(3, 50, device)
    found = begun(lanes, tokens, lookup)
    assert found.rotary is not None
    assert found.hidden is not None
    ids = tokens[lanes[:, 0].long(), lanes[:, 1].long()]
    assert torch.equal(found.input_ids, ids)
    assert torch.equal(found.hidden, embedding.to(device, stored)[ids.long()].to(dtype))
    assert torch.equal(found.rotary, lookup.angles[lanes[:, 1].long()].unsqueeze(1))


@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize("type_name", sorted(QUANT_FORMATS))
def test_quantised_tables(device: torch.device, type_name: str, blocks: int) -> None:
    """The same bits as the kernel that does nothing else."""
    width = blocks * QUANT_FORMATS[type_name].column_multiple
    raw = random_blocks(type_name, 50, width, torch.Generator().manual_seed(1))
    planes = repack(type_name, raw.to(device), 50, width)
    angles = torch.zeros(POSITIONS, 2, 2, device=device)
    lanes, tokens = torch.from_numpy(lanes_of(2)).to(device), tokens_of(2, 50, device)
    found = begun(lanes, tokens, StepTables(angles, planes, torch.float32))
    assert found.hidden is not None
    assert torch.equal(found.hidden, quant_lookup(planes, found.input_ids, torch.float32))


def test_what_cannot_be_looked_up_is_left_out(device: torch.device) -> None:
    angles = torch.ones(POSITIONS, 2, 2, device=device)
    lanes, tokens = torch.from_numpy(lanes_of(2)).to(device), tokens_of(2, 50, device)
    found = begun(lanes, tokens, StepTables(angles, None, torch.float32))
    assert found.hidden is None
    assert found.rotary is not None
    assert found.rotary.shape == (2, 1, 2, 2)
    assert begun(lanes, tokens).rotary is None


@pytest.mark.parametrize("count", [1, 70])
def test_lanes_come_by_the_ring(device: torch.device, count: int) -> None:
    """Those of the slot whose turn it is; the others' are those of other steps."""
    place = StepRing(count + 2, (0, 0, 0, 0), device).place
    tokens, steps = tokens_of(count, 50, device), [lanes_of(count, seed) for seed in range(3)]
    for at, lanes in enumerate(steps):
        place.lanes[at, :count] = torch.from_numpy(lanes).to(device)
    for at, lanes in enumerate(steps):
        place.state[0] = at
        expected = begun(torch.from_numpy(lanes).to(device), tokens)
        kept = torch.full((count, 4), -1, dtype=torch.int32, device=device)
        found = begun(kept, tokens, None, place)
        assert torch.equal(kept.cpu(), torch.from_numpy(lanes))
        assert place.state.tolist() == [at, at]
        for name in ("input_ids", "slot_mapping", "rows", "positions", "context_lens", "order"):
            assert torch.equal(getattr(found, name), getattr(expected, name))
        pieces = 1 + int(expected.pieces[0, 0])
        assert torch.equal(found.pieces[1:pieces], expected.pieces[1:pieces])
