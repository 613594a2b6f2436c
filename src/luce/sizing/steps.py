"""Memory of steps: intermediate tensors, and on a GPU what captured steps hold."""

from __future__ import annotations

from luce.loaders.hparams import HParams

_MIB = 1 << 20
# Allocator, thread buffers and what PyTorch itself takes on first use.
_FIXED_SCRATCH_BYTES = 64 * _MIB

GRAPH_BYTES = 16 * _MIB
"""The driver's own memory for the kernels of one captured step."""
PROMPT_GRAPHS = 23
"""Most captured steps with prompts."""
STEP_MARGIN_BYTES = 512 * _MIB
"""Vendor libraries' workspaces, and fragmentation."""

_DENSE_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_SIZE_STEP = 32


def padded_sizes(max_rows: int) -> tuple[int, ...]:
    """Lanes of the captured steps: small ones closely, then every 32; the last is `max_rows`."""
    sizes = [size for size in _DENSE_SIZES if size < max_rows]
    sizes += range(_DENSE_SIZES[-1] + _SIZE_STEP, max_rows, _SIZE_STEP)
    return (*sizes, max_rows)


def scratch_bytes(hparams: HParams, chunk: int, max_rows: int, element_bytes: int) -> int:
    """Intermediate tensors of the largest step: activations, logits, one matrix being packed."""
    tokens = chunk + max_rows
    logits = 4 * max_rows * hparams.vocab_size * 4
    matrix = hparams.vocab_size * hparams.hidden_size * element_bytes
    return (
        tokens * _token_elements(hparams) * element_bytes + logits + matrix + (_FIXED_SCRATCH_BYTES)
    )


def device_step_bytes(scratch: int, max_rows: int) -> int:
    """Steps on a GPU, before they are measured there: an upper bound.

    Args:
        scratch: of the largest step, which the captured steps share as one pool beside it.
        max_rows: lanes of the largest captured step.
    """
    num_graphs = len(padded_sizes(max_rows)) + PROMPT_GRAPHS
    return 2 * scratch + num_graphs * GRAPH_BYTES + STEP_MARGIN_BYTES


def kept_step_bytes(hparams: HParams, max_rows: int, element_bytes: int) -> int:
    """What captured decode steps hold on a GPU while their model is away, an upper bound: the
    driver's memory of each, the largest one's logits and intermediate tensors.

    Args:
        hparams: of the model.
        max_rows: lanes of the largest.
        element_bytes: of the type it computes in.
    """
    sizes = padded_sizes(max_rows)
    # As the model computes them, and adjusted ones of 4 bytes; rows keep counts of tokens.
    lines = max_rows * (element_bytes + 4 + 4) * hparams.vocab_size
    tokens = max_rows * _token_elements(hparams) * element_bytes
    return len(sizes) * GRAPH_BYTES + lines + tokens + _FIXED_SCRATCH_BYTES


def _token_elements(hparams: HParams) -> int:
    """Numbers kept at a time for one token of a step, in its widest layer."""
    q_rows = hparams.num_heads * hparams.head_dim * (2 if hparams.gated_attention else 1)
    kv_rows = hparams.num_kv_heads * hparams.head_dim
    mixing = 3 * q_rows + 4 * kv_rows
    linear = hparams.linear_attention
    if linear is not None:
        mixing = max(mixing, 3 * linear.conv_channels + 4 * linear.value_size)
    feed = 3 * hparams.intermediate_size
    experts = hparams.experts
    if experts is not None:
        routed = experts.num_per_token * (3 * experts.size + 2 * hparams.hidden_size)
        feed = routed + 3 * experts.shared_size + 2 * experts.num_experts
    return 4 * hparams.hidden_size + mixing + feed
