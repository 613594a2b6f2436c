"""Whether `decode_few.cu` serves a layer, found out by a trial; else kernel after kernel does."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from luce.engine.device import kernel_refusal
from luce.engine.ops.attention import AttentionBatch, AttentionTensors
from luce.engine.ops.cuda.decode_few import MOST_TOKENS, FewGeometry, attend_few
from luce.engine.ops.qkv import HeadNorms, Placing, TokenPlaces
from luce.engine.ops.ref.attention import ReferenceAttention
from luce.engine.ops.ref.gated_heads import ReferenceGatedHeads
from luce.engine.ops.ref.pointwise import rms_norm, rotate_half, store_kv
from luce.engine.ops.ref.qkv import StepwisePlaceQkv
from luce.engine.ops.triton.probe import TrialError, launch_refusal

_MOST_APART = 1e-2
"""Of the norm: queries, weights and results, being bfloat16, make 3e-3."""
_CONTEXTS = (1, 1100, 272)
"""In one part and in several, more than are folded at once, with and without older tokens beside
the newest."""


def few_refusal(
    geometry: FewGeometry, tensors: AttentionTensors, projected: torch.Tensor
) -> str | None:
    """Why a step is not for it, or None; found out at the first step of such layers.

    Raises:
        RuntimeError: there is no memory for the trial.
    """
    tokens, device = len(projected), projected.device
    if tokens > MOST_TOKENS or tensors.num_decode != tokens:
        return f"made for up to {MOST_TOKENS} single tokens"
    if projected.dtype != torch.bfloat16:
        return "made for bfloat16"
    reason = geometry.refusal or kernel_refusal()
    if reason is not None:
        return reason
    return launch_refusal(("decode_few", geometry, device), lambda: try_few(geometry, device))


@dataclass(frozen=True, slots=True)
class _Trial:
    """Tokens at the ends of contexts in scattered blocks."""

    projected: torch.Tensor
    placing: Placing
    tensors: AttentionTensors
    tables: tuple[tuple[int, ...], ...]

    @classmethod
    def made(cls, geometry: FewGeometry, device: torch.device) -> _Trial:
        heads, page, lens = geometry.heads, geometry.block_tokens, _CONTEXTS
        generator = torch.Generator().manual_seed(1)

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(device, torch.bfloat16)

        blocks = [-(-length // page) for length in lens]
        ids = torch.split(torch.randperm(sum(blocks), generator=generator) + 1, blocks)
        tables = torch.zeros(len(lens), max(blocks), dtype=torch.int32)
        for line, own in zip(tables, ids, strict=True):
            line[: len(own)] = own
        ends = [(length - 1) % page for length in lens]
        slots = torch.tensor([int(own[-1]) * page for own in ids]) + torch.tensor(ends)
        angles = torch.rand(len(lens), 1, geometry.rotated // 2, generator=generator) * 6
        rotary = torch.stack((angles.cos(), angles.sin()), -1)
        places = TokenPlaces(rotary.to(device), slots.to(device))
        norms = None
        if geometry.eps is not None:
            norms = HeadNorms(noise(heads.head_dim), noise(heads.head_dim), geometry.eps)
        cache = noise(sum(blocks) + 1, page, 2, heads.num_kv_heads, heads.head_dim)
        for own, end in zip(ids, ends, strict=True):
            cache[own[-1], end:] = torch.nan  # What is not there, or yet to be placed.
        lines = (1 + geometry.is_gated) * heads.num_heads + 2 * heads.num_kv_heads
        numbers = torch.arange(len(lens) + 1, dtype=torch.int32, device=device)
        tensors = AttentionTensors(
            block_tables=tables.to(device),
            rows=numbers[:-1],
            context_lens=torch.tensor(lens, dtype=torch.int32, device=device),
            query_starts=numbers,
            num_decode=len(lens),
            max_queries=0,
        )
        placing = Placing(heads, norms, places, cache)
        projected = noise(len(lens), lines * heads.head_dim)
        return cls(projected, placing, tensors, tuple(tuple(own.tolist()) for own in ids))

    def expected(self, *, is_gated: bool) -> torch.Tensor:
        """Operation by operation, in float32 from the rotation on; the cache is written."""
        placing, heads = self.placing, self.placing.heads
        plain, packed = ReferenceGatedHeads(), self.projected.clone()
        if is_gated:
            packed = plain.split(self.projected, heads)
        place_qkv = StepwisePlaceQkv(rms_norm, rotate_half, store_kv)
        place_qkv(packed, heads, placing.norms, placing.places, placing.cache)
        cache = placing.cache
        assert isinstance(cache, torch.Tensor)
        starts = tuple(range(len(_CONTEXTS) + 1))
        batch = AttentionBatch(starts, _CONTEXTS, self.tables, cache.shape[1])
        split = packed.view(len(packed), -1, heads.head_dim).float()
        mixed = ReferenceAttention(heads).prepare(batch)(split, cache.float())
        return plain.gate(mixed, self.projected.float(), heads) if is_gated else mixed


def try_few(geometry: FewGeometry, device: torch.device) -> None:
    """Short and long contexts, twice, against the reference; what is in the cache, too.

    And in one part: contexts that take a cluster several rounds otherwise are 64 times as long.

    Raises:
        TrialError: results differ.
    """
    trial = _Trial.made(geometry, device)
    cache = trial.placing.cache
    assert isinstance(cache, torch.Tensor)
    mine = replace(trial.placing, cache=(placed := cache.clone()))

    def attended(form: FewGeometry) -> torch.Tensor:
        return attend_few(trial.projected, mine, trial.tensors, form)

    words = attended(geometry)
    found = [attended(replace(geometry, order=None)) for _ in "ab"]
    in_rounds = attended(replace(geometry, order=None, parts=1))
    expected = trial.expected(is_gated=geometry.is_gated)
    slots = trial.placing.places.slot_mapping
    pairs = [(found[0], expected), (in_rounds, expected)]
    pairs.append((placed.flatten(0, 1)[slots], cache.flatten(0, 1)[slots]))
    if geometry.order is not None:
        pairs.append((numbers_of(words, order=geometry.order), expected))
    for ours, theirs in pairs:
        apart = float((ours.float() - theirs.float()).norm() / theirs.float().norm())
        if not apart < _MOST_APART:
            raise TrialError(f"attention of a few tokens is {apart:.1e} off")
    if not torch.equal(*found):
        raise TrialError("attention of a few tokens is not the same each time")


def numbers_of(words: torch.Tensor, *, order: bool) -> torch.Tensor:
    """[T, K] in float32 of int32 [T, 19, K / 32], as `ops.triton.quant_activations` says."""
    column = torch.arange(32, dtype=torch.int32, device=words.device)
    word, half = column % 4, column % 8 // 4
    if order:
        word, half = column % 2 * 2 + column % 8 // 4, column // 2 % 2
    pairs = words[:, word + column // 8 * 4]
    codes = (pairs << 16 * (1 - half)[:, None]) >> 16
    scales = words[:, 16:17].contiguous().view(torch.float32)
    return (codes * scales).transpose(1, 2).flatten(1)
