"""Whether `prefill_attention.cu` serves a model, found out by a trial; else Triton's kernel."""

from __future__ import annotations

import logging

import torch

from luce.engine.device import kernel_refusal
from luce.engine.ops.attention import AttentionTensors, HeadShape
from luce.engine.ops.candidates import OpRequest
from luce.engine.ops.cuda import prefill_attention as kernel
from luce.engine.ops.kv_cache import KVCache
from luce.engine.ops.triton.paged_attention_prefill import PrefillAttention, prefill_attention
from luce.engine.ops.triton.probe import TrialError, launch_refusal

_log = logging.getLogger(__name__)

_MOST_APART = 1e-2
"""Of the norm: weights and results, being bfloat16, make 3e-3."""
_CONTEXT, _MANY, _FEW = 300, 150, 40


def prefill_for(request: OpRequest) -> PrefillAttention:
    """The kernel for runs of tokens."""
    reason = _refusal(request)
    if reason is not None:
        _log.info("prompts attend by Triton's kernel: %s", reason)
        return prefill_attention
    facts = "prefill_few", request.heads, request.block_tokens
    reason = launch_refusal(facts, lambda: _try(request, kernel.few_queries_attention, _FEW))
    if reason is not None:
        _log.warning("short prompts attend as long ones do: %s", reason)
        return kernel.prefill_attention
    return _by_length


def _by_length(
    qkv: torch.Tensor,
    cache: KVCache,
    tensors: AttentionTensors,
    heads: HeadShape,
    out: torch.Tensor,
) -> None:
    """Either kernel, by the tokens of prompts in the step."""
    is_short = len(qkv) - tensors.num_decode <= kernel.FEW
    attend = kernel.few_queries_attention if is_short else kernel.prefill_attention
    attend(qkv, cache, tensors, heads, out)


def _refusal(request: OpRequest) -> str | None:
    if request.has_typed_cache or request.dtype != torch.bfloat16:
        return "the other is made for bfloat16"
    reason = kernel.refusal(request.heads, request.block_tokens) or kernel_refusal(is_hopper=True)
    if reason is not None:
        return reason
    facts = "prefill_attention", request.heads, request.block_tokens
    return launch_refusal(facts, lambda: _try(request, kernel.prefill_attention, _MANY))


def _try(request: OpRequest, attend: PrefillAttention, queries: int) -> None:
    """The end of a sequence in scattered blocks, against the definition.

    Args:
        request: the model's facts.
        attend: the kernel.
        queries: so many last tokens of the sequence.

    Raises:
        TrialError: results differ.
    """
    heads, page, device = request.heads, request.block_tokens, request.device
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, torch.bfloat16)

    blocks = -(-_CONTEXT // page)
    cache = noise(blocks + 1, 2, heads.num_kv_heads, page, heads.head_dim)
    cache[0] = float("nan")
    cache = cache.permute(0, 3, 1, 2, 4)
    table = torch.randperm(blocks, generator=generator) + 1
    qkv = noise(queries, heads.num_heads + 2 * heads.num_kv_heads, heads.head_dim)
    tensors = AttentionTensors(
        table.int().to(device)[None],
        torch.tensor([0], dtype=torch.int32, device=device),
        torch.tensor([_CONTEXT], dtype=torch.int32, device=device),
        torch.tensor([0, queries], dtype=torch.int32, device=device),
        num_decode=0,
        max_queries=queries,
    )
    context = cache[table.to(device)].flatten(0, 1)[:_CONTEXT].float()
    expected = _by_definition(qkv[:, : heads.num_heads].float(), context, heads)
    out = torch.full_like(expected, float("nan"), dtype=torch.bfloat16)
    attend(qkv, cache, tensors, heads, out)
    apart = float((out.float() - expected).norm() / expected.norm())
    if not apart < _MOST_APART:
        raise TrialError(f"attention is {apart:.1e} off")


def _by_definition(queries: torch.Tensor, context: torch.Tensor, heads: HeadShape) -> torch.Tensor:
    """Attention of the last tokens [Q, H, D] of a context [C, 2, K, D]: [Q, H * D]."""
    keys, values = context.repeat_interleave(heads.group, 2).unbind(1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / heads.head_dim**0.5
    hidden = torch.ones(len(queries), len(keys), dtype=torch.bool, device=keys.device)
    hidden = hidden.triu(len(keys) - len(queries) + 1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
