"""Whether `decode_attention.cu` serves a model, found out by a trial; else Triton's kernel."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from luce.engine.device import kernel_refusal
from luce.engine.ops.attention import AttentionBatch, AttentionTensors
from luce.engine.ops.candidates import OpRequest
from luce.engine.ops.cuda import decode_attention as kernel
from luce.engine.ops.decode_pieces import MOST_TOKENS, pieces_of
from luce.engine.ops.ref.attention import ReferenceAttention
from luce.engine.ops.ref.gated_heads import ReferenceGatedHeads
from luce.engine.ops.triton.paged_attention_decode import (
    DecodeAttention,
    DecodeScratch,
    decode_attention,
)
from luce.engine.ops.triton.probe import TrialError, launch_refusal

_log = logging.getLogger(__name__)

_MOST_APART = 1e-2
"""Of the norm: weights and results, being bfloat16, make 3e-3."""
_CONTEXTS = (1, 789, 256, 100)
_FEW_PROGRAMS = 2
"""Each takes several pieces of these contexts, as in serving; of a GPU's all, each has one."""


def decode_for(request: OpRequest) -> tuple[DecodeAttention, bool]:
    """The kernel for sequences with one query, and whether it minds gates."""
    reason = _refusal(request)
    if reason is None:
        return kernel.decode_attention, kernel.takes_gates(request.heads)
    _log.info("single tokens attend by Triton's kernel: %s", reason)
    return decode_attention, False


def _refusal(request: OpRequest) -> str | None:
    if request.has_typed_cache or request.dtype != torch.bfloat16:
        return "the other is made for bfloat16"
    reason = kernel.refusal(request.heads, request.block_tokens) or kernel_refusal()
    if reason is not None:
        return reason
    if request.max_ctx > MOST_TOKENS:
        return f"made for contexts of up to {MOST_TOKENS} tokens"
    facts = "decode_attention", request.heads, request.block_tokens, request.device
    return launch_refusal(facts, lambda: try_kernel(request))


def try_kernel(request: OpRequest) -> None:
    """Short and long contexts in scattered blocks, twice, against the reference; then by few
    programs that take many pieces each.

    Raises:
        TrialError: results differ.
    """
    heads, page, device, lens = request.heads, request.block_tokens, request.device, _CONTEXTS
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.bfloat16)

    width = -(-max(lens) // page)
    cache = noise(width + 1, 2, heads.num_kv_heads, page, heads.head_dim).permute(0, 3, 1, 2, 4)
    qkv = noise(len(lens), heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim)
    tables = [torch.randperm(width, generator=generator) + 1 for _ in lens]
    numbers = torch.arange(len(lens) + 1, dtype=torch.int32, device=device)
    tensors = AttentionTensors(
        block_tables=torch.stack(tables).int().to(device),
        rows=numbers[:-1],
        context_lens=torch.tensor(lens, dtype=torch.int32, device=device),
        query_starts=numbers,
        num_decode=len(lens),
        max_queries=0,
        pieces=torch.tensor(pieces_of(lens), dtype=torch.int32, device=device),
    )
    scratch = DecodeScratch.make(heads, len(lens), max(lens), device)
    found = [qkv.new_full((len(lens), heads.num_heads * heads.head_dim), torch.nan) for _ in "abcd"]
    gates = noise(len(lens), 2 * (heads.num_heads + heads.num_kv_heads) * heads.head_dim)
    gated = replace(tensors, gates=gates if kernel.takes_gates(heads) else None)
    for out, each in zip(found[:3], (tensors, tensors, gated), strict=True):
        kernel.decode_attention(qkv, cache, each, heads, scratch, out)
    kernel.CudaDecode(_FEW_PROGRAMS)(qkv, cache, tensors, heads, scratch, found[3])
    starts = tuple(range(len(lens) + 1))
    batch = AttentionBatch(starts, lens, tuple(tuple(each.tolist()) for each in tables), page)
    expected = ReferenceAttention(heads).prepare(batch)(qkv, cache).float()
    apart = float((found[0].float() - expected).norm() / expected.norm())
    if not apart < _MOST_APART:
        raise TrialError(f"attention is {apart:.1e} off")
    if not torch.equal(found[0], found[1]):
        raise TrialError("attention is not the same each time")
    if not torch.equal(found[0], found[3]):
        raise TrialError("attention is not the same by few programs")
    if gated.gates is not None:
        expected = ReferenceGatedHeads().gate(found[0].float(), gates.float(), heads)
        apart = float((found[2].float() - expected).norm() / expected.norm())
        if not apart < _MOST_APART:
            raise TrialError(f"attention with gates is {apart:.1e} off")
